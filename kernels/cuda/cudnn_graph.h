// cuDNN's graph interface as objects: operations on described tensors, and plans to run them. A thin layer;
// what fails throws RunError with cuDNN's words, unless said otherwise.
#pragma once

#if defined(TRAINER_CUDA)

#include <cudnn.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trainer::cuda {

// Owns one of cuDNN's descriptors.
class CudnnDescriptor {
 public:
  explicit CudnnDescriptor(cudnnBackendDescriptorType_t type);
  ~CudnnDescriptor();
  CudnnDescriptor(CudnnDescriptor&& other) noexcept;
  CudnnDescriptor& operator=(CudnnDescriptor&& other) noexcept;

  template <class T>
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const T& value) {
    set_bytes(name, type, 1, &value);
  }
  template <class T>
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::span<const T> values) {
    set_bytes(name, type, static_cast<int64_t>(values.size()), values.data());
  }
  void set(cudnnBackendAttributeName_t name, const CudnnDescriptor& value) {
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, value.get());
  }
  int64_t int64(cudnnBackendAttributeName_t name) const;
  // No more attributes after this. With `why` given, a failure is false and its reason there.
  bool finalize(std::string* why = nullptr);
  cudnnBackendDescriptor_t get() const { return descriptor_; }

 private:
  void set_bytes(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                 const void* values);

  cudnnBackendDescriptor_t descriptor_ = nullptr;
};

// A device that plans are for: a handle's, or one described in cuDNN's JSON form, which need not be there.
CudnnDescriptor cudnn_device_of(cudnnHandle_t handle);
CudnnDescriptor cudnn_device_from(std::string_view json);

// A tensor within its graph.
struct CudnnTensor {
  size_t index;
};

// Operations in the order of their calls. Sums are taken in fp32.
class CudnnGraph {
 public:
  struct Layout {
    std::vector<int64_t> dimensions, strides;  // in elements
  };

  // Memory of the device, aligned to 16 bytes, that a plan is given under `id`.
  CudnnTensor memory(int64_t id, const Layout& layout, cudnnDataType_t type);
  // One fp32 number of the host, likewise.
  CudnnTensor number(int64_t id);
  // What exists within a kernel only.
  CudnnTensor between(const Layout& layout, cudnnDataType_t type);

  void pointwise(cudnnPointwiseMode_t mode, CudnnTensor y, CudnnTensor x,
                 std::optional<CudnnTensor> b = std::nullopt);
  // y = which of b's rows or columns an element is in.
  void index(CudnnTensor y, CudnnTensor x, int64_t axis);
  void at_least(CudnnTensor y, CudnnTensor x, CudnnTensor b);
  // y = chosen ? x : otherwise.
  void select(CudnnTensor y, CudnnTensor chosen, CudnnTensor x, CudnnTensor otherwise);
  void product(CudnnTensor c, CudnnTensor a, CudnnTensor b);
  void reduce(cudnnReduceTensorOp_t how, CudnnTensor y, CudnnTensor x);
  // The same elements under y's layout.
  void reshape(CudnnTensor y, CudnnTensor x);

  CudnnDescriptor finish() const;

 private:
  CudnnTensor add_tensor(int64_t id, const Layout& layout, cudnnDataType_t type, bool is_virtual,
                         bool by_value);
  CudnnDescriptor pointwise_operation(cudnnPointwiseMode_t mode, cudnnDataType_t precision,
                                      std::optional<int64_t> axis, CudnnTensor y, CudnnTensor x);
  void add_operation(CudnnDescriptor operation);
  const CudnnDescriptor& at(CudnnTensor tensor) const { return tensors_[tensor.index]; }

  std::vector<CudnnDescriptor> tensors_, parts_, operations_;
  int64_t next_between_ = int64_t{1} << 32;
};

// Ways to run a finished graph on a device, cuDNN's first choice first. Empty, with the reason in `why`,
// where it has none.
std::vector<CudnnDescriptor> cudnn_engines(const CudnnDescriptor& graph, const CudnnDescriptor& device,
                                           std::string& why);

class CudnnPlan {
 public:
  // The first of the graph's engines that can be built and needs no more than `most_bytes` of workspace;
  // null, with the reason in `why`, where there is none.
  static std::optional<CudnnPlan> make(const CudnnGraph& graph, const CudnnDescriptor& device,
                                       size_t most_bytes, std::string& why);

  size_t workspace_bytes() const { return static_cast<size_t>(workspace_bytes_); }
  // Starts in the handle's stream. `data`: what the graph's ids stand for; numbers are read before it
  // returns.
  struct Argument {
    int64_t id;
    const void* data;
  };
  void run(cudnnHandle_t handle, std::span<const Argument> data, void* workspace) const;

 private:
  CudnnPlan(CudnnDescriptor plan, int64_t workspace_bytes)
      : plan_(std::move(plan)), workspace_bytes_(workspace_bytes) {}

  CudnnDescriptor plan_;
  int64_t workspace_bytes_;
};

}  // namespace trainer::cuda

#endif
