#include "support/backend.h"

#include "base/error.h"
#include "cpu/isa.h"
#include "device/cores.h"
#include "device/cuda/cuda_device.h"
#include "ops/cuda_kernels.h"
#include "simt/simt_kernels.h"
#include "support/guarded_backend.h"

namespace trainer {
namespace {

BenchBackend host_backend(int threads) {
  BenchBackend backend;
  backend.device = std::shared_ptr<Device>(std::shared_ptr<Device>(), &host_device());
  backend.kernels = make_host_kernels(threads);
  backend.ceiling_kernels = make_host_kernels(threads);
  backend.host_bf16 = multiplies_bf16(best_isa());
  return backend;
}

void require_cuda_device() {
  if (cuda_device_count() == 0)
    input_error(
        "--backend cuda: {}; start on a machine with an NVIDIA GPU a program that was built with the CUDA "
        "toolkit, or choose another backend",
        why_no_cuda_device());
}

BenchBackend cuda_backend() {
  require_cuda_device();
  BenchBackend backend;
  backend.device = make_cuda_device(0);
  backend.device->select();
  void* stream = cuda_stream(backend.device->compute());
  backend.kernels = make_cuda_kernels(stream);
  backend.ceiling_kernels = make_cuda_kernels(stream);
  backend.own = make_cuda_kernels(stream, CudaLibraries::kNone);
  backend.tensor_cores = true;
  return backend;
}

BenchBackend simt_backend() {
  BenchBackend backend;
  const auto device = std::make_shared<testing::GuardedDevice>();
  const auto kernels = [&] {
    return std::make_unique<testing::GuardedKernels>(make_simt_kernels(), *device, device->compute());
  };
  backend.device = device;
  backend.kernels = kernels();
  backend.ceiling_kernels = kernels();
  backend.simulated = true;
  backend.tensor_cores = true;
  return backend;
}

}  // namespace

std::vector<std::string> bench_backends(const std::vector<std::string>& further) {
  std::vector<std::string> names = {"host", "cuda", "simt"};
  names.insert(names.end(), further.begin(), further.end());
  return names;
}

BenchBackend make_bench_backend(const std::string& name, int threads) {
  BenchBackend backend = name == "cuda"   ? cuda_backend()
                         : name == "simt" ? simt_backend()
                                          : host_backend(threads);
  backend.name = name;
  backend.machine = describe_machine(name, *backend.device, *backend.kernels, threads);
  return backend;
}

std::string describe_machine(const std::string& name, const Device& device, const KernelSet& kernels,
                             int threads) {
  if (name == "simt")
    return fmt::format("{}, simulated on the host, {}: times mean nothing", kernels.name(), processor_name());
  if (name == "cuda")
    return fmt::format("{}, kernels {}; host {}", device.name(), kernels.name(), processor_name());
  return fmt::format("{}, {} threads on {} cores, kernels {}", processor_name(), threads,
                     allowed_cores().size(), kernels.name());
}

RankBackend make_training_backend(const std::string& name, Config config, const Communicator& world) {
  if (name == "simt")
    return testing::guarded_backend(std::make_shared<testing::GuardedDevice>(),
                                    [] { return make_simt_kernels(); });
  if (name == "cuda") {
    require_cuda_device();
    config.device.kind = DeviceKind::kCuda;
  }
  return make_backend(config, world);
}

}  // namespace trainer
