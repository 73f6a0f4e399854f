#include "device/cuda/cuda_device.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/error.h"
#include "base/log.h"
#include "base/units.h"

namespace trainer {
namespace {

void check_cuda(cudaError_t code, const char* what) {
  if (code != cudaSuccess) run_error("{} failed: {}", what, cudaGetErrorString(code));
}

// In destructors: what fails there is told, not thrown. A failing device has been reported already.
void release_cuda(cudaError_t code, const char* what) {
  if (code != cudaSuccess) log_warning("{} failed: {}", what, cudaGetErrorString(code));
}

// Each host thread has a current device of its own.
void select_device(int index) { check_cuda(cudaSetDevice(index), "cudaSetDevice"); }

[[noreturn]] void no_memory(const char* what, size_t bytes, cudaError_t code) {
  cudaGetLastError();
  size_t free = 0, total = 0;
  std::string left;
  if (cudaMemGetInfo(&free, &total) == cudaSuccess)
    left = fmt::format("; {} of the device's {} are free", format_bytes(static_cast<double>(free)),
                       format_bytes(static_cast<double>(total)));
  run_error("cannot have {} of {}: {}{}", format_bytes(static_cast<double>(bytes)), what,
            cudaGetErrorString(code), left);
}

class CudaEvent final : public DeviceEvent {
 public:
  explicit CudaEvent(cudaStream_t stream) {
    check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    const cudaError_t code = cudaEventRecord(event_, stream);
    if (code == cudaSuccess) return;
    release_cuda(cudaEventDestroy(event_), "cudaEventDestroy");
    check_cuda(code, "cudaEventRecord");
  }
  ~CudaEvent() override { release_cuda(cudaEventDestroy(event_), "cudaEventDestroy"); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  bool reached() override {
    const cudaError_t code = cudaEventQuery(event_);
    if (code == cudaErrorNotReady) return false;
    check_cuda(code, "work on the CUDA device");
    return true;
  }
  void wait() override { check_cuda(cudaEventSynchronize(event_), "work on the CUDA device"); }

 private:
  cudaEvent_t event_ = nullptr;
};

class CudaQueue final : public DeviceQueue {
 public:
  CudaQueue(int index, int priority) : index_(index) {
    select_device(index);
    check_cuda(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority),
               "cudaStreamCreateWithPriority");
  }
  ~CudaQueue() override { release_cuda(cudaStreamDestroy(stream_), "cudaStreamDestroy"); }
  CudaQueue(const CudaQueue&) = delete;
  CudaQueue& operator=(const CudaQueue&) = delete;

  bool host_reaches() const override { return false; }
  void copy_in(void* device, const void* host, size_t bytes) override {
    move(device, host, bytes, cudaMemcpyHostToDevice);
  }
  void copy_out(void* host, const void* device, size_t bytes) override {
    move(host, device, bytes, cudaMemcpyDeviceToHost);
  }
  void copy(void* to, const void* from, size_t bytes) override {
    move(to, from, bytes, cudaMemcpyDeviceToDevice);
  }
  DeviceEventPtr record() override {
    select_device(index_);
    return std::make_unique<CudaEvent>(stream_);
  }
  void synchronise() override { check_cuda(cudaStreamSynchronize(stream_), "work on the CUDA device"); }
  cudaStream_t stream() const { return stream_; }

 private:
  void move(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    if (bytes == 0) return;
    select_device(index_);
    check_cuda(cudaMemcpyAsync(to, from, bytes, kind, stream_), "cudaMemcpyAsync");
  }

  const int index_;
  cudaStream_t stream_ = nullptr;
};

// From the device's pool, in the order of the queue that computes.
class CudaMemory final : public DeviceMemory {
 public:
  CudaMemory(int index, CudaQueue& queue, size_t bytes) : index_(index), stream_(queue.stream()) {
    if (bytes == 0) return;
    select_device(index);
    void* data = nullptr;
    if (const cudaError_t code = cudaMallocAsync(&data, bytes, stream_); code != cudaSuccess)
      no_memory("memory of the CUDA device", bytes, code);
    bytes_ = {static_cast<std::byte*>(data), bytes};
    check_cuda(cudaMemsetAsync(data, 0, bytes, stream_), "cudaMemsetAsync");
    queue.synchronise();
  }
  ~CudaMemory() override {
    if (!bytes_.data()) return;
    release_cuda(cudaSetDevice(index_), "cudaSetDevice");
    release_cuda(cudaFreeAsync(bytes_.data(), stream_), "cudaFreeAsync");
  }
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;

 private:
  const int index_;
  cudaStream_t stream_;
};

class PinnedMemory final : public DeviceMemory {
 public:
  PinnedMemory(int index, size_t bytes) {
    if (bytes == 0) return;
    select_device(index);
    void* data = nullptr;
    if (const cudaError_t code = cudaHostAlloc(&data, bytes, cudaHostAllocPortable); code != cudaSuccess)
      no_memory("pinned host memory", bytes, code);
    std::memset(data, 0, bytes);
    bytes_ = {static_cast<std::byte*>(data), bytes};
  }
  ~PinnedMemory() override {
    if (bytes_.data()) release_cuda(cudaFreeHost(bytes_.data()), "cudaFreeHost");
  }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
};

int stream_priority(int index, bool urgent) {
  select_device(index);
  int least = 0, greatest = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  return urgent ? greatest : least;
}

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int index)
      : index_(index),
        compute_(index, stream_priority(index, false)),
        transfers_(index, stream_priority(index, true)) {
    check_cuda(cudaGetDeviceProperties(&properties_, index), "cudaGetDeviceProperties");
    // What is given back stays with the process, for the next that asks.
    cudaMemPool_t pool = nullptr;
    check_cuda(cudaDeviceGetDefaultMemPool(&pool, index), "cudaDeviceGetDefaultMemPool");
    uint64_t keep = UINT64_MAX;
    check_cuda(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep),
               "cudaMemPoolSetAttribute");
  }

  std::string name() const override { return fmt::format("{} (CUDA device {})", properties_.name, index_); }
  DeviceMemoryPtr allocate(size_t bytes) override {
    return std::make_unique<CudaMemory>(index_, compute_, bytes);
  }
  DeviceMemoryPtr allocate_pinned(size_t bytes) override {
    return std::make_unique<PinnedMemory>(index_, bytes);
  }
  DeviceQueue& compute() override { return compute_; }
  DeviceQueue& transfers() override { return transfers_; }
  void select() override { select_device(index_); }
  int index() const { return index_; }
  std::string id() const { return {properties_.uuid.bytes, sizeof properties_.uuid.bytes}; }

 private:
  const int index_;
  cudaDeviceProp properties_{};
  CudaQueue compute_, transfers_;
};

// The code with which the driver refused, cudaSuccess when it did not.
cudaError_t count_devices(int& count) {
  count = 0;  // left alone by calls that fail
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess) return code;
  count = 0;
  cudaGetLastError();  // or the next call would report it
  if (code != cudaErrorInsufficientDriver && code != cudaErrorNoDevice)
    check_cuda(code, "cudaGetDeviceCount");
  return code;
}

}  // namespace

int cuda_device_count() {
  int count = 0;
  count_devices(count);
  return count;
}

std::string why_no_cuda_device() {
  int count = 0;
  const cudaError_t code = count_devices(count);
  if (count > 0) return "";
  if (code == cudaErrorInsufficientDriver)
    return fmt::format("this machine has no CUDA driver, or one older than CUDA {}.{}", CUDART_VERSION / 1000,
                       CUDART_VERSION % 1000 / 10);
  return "this machine has no CUDA device that this process may use";
}

std::unique_ptr<Device> make_cuda_device(int index) { return std::make_unique<CudaDevice>(index); }

int cuda_index(const Device& device) { return dynamic_cast<const CudaDevice&>(device).index(); }

void* cuda_stream(DeviceQueue& queue) { return dynamic_cast<CudaQueue&>(queue).stream(); }

std::string cuda_device_id(const Device& device) { return dynamic_cast<const CudaDevice&>(device).id(); }

}  // namespace trainer
