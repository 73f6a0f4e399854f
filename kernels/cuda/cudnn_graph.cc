#if defined(TRAINER_CUDA)

#include "cuda/cudnn_graph.h"

#include <array>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace trainer::cuda {
namespace {

constexpr int64_t kTensorAlignment = 16;

std::string last_words(cudnnStatus_t status) {
  std::array<char, 1024> message{};
  cudnnGetLastErrorString(message.data(), message.size());
  return fmt::format("{}{}{}", cudnnGetErrorString(status), message[0] ? ": " : "", message.data());
}

void check_cudnn(cudnnStatus_t status, const char* what) {
  if (status != CUDNN_STATUS_SUCCESS) run_error("{} failed: cuDNN: {}", what, last_words(status));
}

}  // namespace

CudnnDescriptor::CudnnDescriptor(cudnnBackendDescriptorType_t type) {
  check_cudnn(cudnnBackendCreateDescriptor(type, &descriptor_), "cudnnBackendCreateDescriptor");
}
CudnnDescriptor::~CudnnDescriptor() {
  if (!descriptor_) return;
  if (const cudnnStatus_t status = cudnnBackendDestroyDescriptor(descriptor_); status != CUDNN_STATUS_SUCCESS)
    log_warning("cudnnBackendDestroyDescriptor failed: {}", last_words(status));
}
CudnnDescriptor::CudnnDescriptor(CudnnDescriptor&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, nullptr)) {}
CudnnDescriptor& CudnnDescriptor::operator=(CudnnDescriptor&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

void CudnnDescriptor::set_bytes(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                int64_t count, const void* values) {
  check_cudnn(cudnnBackendSetAttribute(descriptor_, name, type, count, values), "cudnnBackendSetAttribute");
}

int64_t CudnnDescriptor::int64(cudnnBackendAttributeName_t name) const {
  int64_t value = 0, count = 0;
  check_cudnn(cudnnBackendGetAttribute(descriptor_, name, CUDNN_TYPE_INT64, 1, &count, &value),
              "cudnnBackendGetAttribute");
  return value;
}

bool CudnnDescriptor::finalize(std::string* why) {
  const cudnnStatus_t status = cudnnBackendFinalize(descriptor_);
  if (status == CUDNN_STATUS_SUCCESS) return true;
  if (!why) check_cudnn(status, "cudnnBackendFinalize");
  *why = last_words(status);
  return false;
}

CudnnDescriptor cudnn_device_of(cudnnHandle_t handle) {
  CudnnDescriptor device(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  device.set(CUDNN_ATTR_DEVICEPROP_HANDLE, CUDNN_TYPE_HANDLE, handle);
  device.finalize();
  return device;
}

CudnnDescriptor cudnn_device_from(std::string_view json) {
  CudnnDescriptor device(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  device.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, std::span<const char>(json));
  device.finalize();
  return device;
}

CudnnTensor CudnnGraph::add_tensor(int64_t id, const Layout& layout, cudnnDataType_t type, bool is_virtual,
                                   bool by_value) {
  CudnnDescriptor& tensor = tensors_.emplace_back(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  tensor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id);
  tensor.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type);
  tensor.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, kTensorAlignment);
  tensor.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, std::span(layout.dimensions));
  tensor.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, std::span(layout.strides));
  tensor.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, is_virtual);
  tensor.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, by_value);
  tensor.finalize();
  return {tensors_.size() - 1};
}

CudnnTensor CudnnGraph::memory(int64_t id, const Layout& layout, cudnnDataType_t type) {
  return add_tensor(id, layout, type, false, false);
}
CudnnTensor CudnnGraph::number(int64_t id) {
  return add_tensor(id, {{1, 1, 1, 1}, {1, 1, 1, 1}}, CUDNN_DATA_FLOAT, false, true);
}
CudnnTensor CudnnGraph::between(const Layout& layout, cudnnDataType_t type) {
  return add_tensor(next_between_++, layout, type, true, false);
}

CudnnDescriptor CudnnGraph::pointwise_operation(cudnnPointwiseMode_t mode, cudnnDataType_t precision,
                                                std::optional<int64_t> axis, CudnnTensor y, CudnnTensor x) {
  CudnnDescriptor& part = parts_.emplace_back(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  part.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode);
  part.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, precision);
  if (axis) part.set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, *axis);
  part.finalize();
  CudnnDescriptor operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, part);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, at(x));
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, at(y));
  return operation;
}

void CudnnGraph::add_operation(CudnnDescriptor operation) {
  operation.finalize();
  operations_.push_back(std::move(operation));
}

void CudnnGraph::pointwise(cudnnPointwiseMode_t mode, CudnnTensor y, CudnnTensor x,
                           std::optional<CudnnTensor> b) {
  CudnnDescriptor operation = pointwise_operation(mode, CUDNN_DATA_FLOAT, std::nullopt, y, x);
  if (b) operation.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, at(*b));
  add_operation(std::move(operation));
}

void CudnnGraph::index(CudnnTensor y, CudnnTensor x, int64_t axis) {
  add_operation(pointwise_operation(CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, axis, y, x));
}

void CudnnGraph::at_least(CudnnTensor y, CudnnTensor x, CudnnTensor b) {
  CudnnDescriptor operation =
      pointwise_operation(CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, std::nullopt, y, x);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, at(b));
  add_operation(std::move(operation));
}

void CudnnGraph::select(CudnnTensor y, CudnnTensor chosen, CudnnTensor x, CudnnTensor otherwise) {
  CudnnDescriptor operation =
      pointwise_operation(CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, std::nullopt, y, x);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, at(otherwise));
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, at(chosen));
  add_operation(std::move(operation));
}

void CudnnGraph::product(CudnnTensor c, CudnnTensor a, CudnnTensor b) {
  CudnnDescriptor& part = parts_.emplace_back(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  part.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  part.finalize();
  CudnnDescriptor operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, at(a));
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, at(b));
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, at(c));
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, part);
  add_operation(std::move(operation));
}

void CudnnGraph::reduce(cudnnReduceTensorOp_t how, CudnnTensor y, CudnnTensor x) {
  CudnnDescriptor& part = parts_.emplace_back(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  part.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, how);
  part.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  part.finalize();
  CudnnDescriptor operation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, at(x));
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, at(y));
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, part);
  add_operation(std::move(operation));
}

void CudnnGraph::reshape(CudnnTensor y, CudnnTensor x) {
  CudnnDescriptor operation(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, at(x));
  operation.set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, at(y));
  add_operation(std::move(operation));
}

CudnnDescriptor CudnnGraph::finish() const {
  std::vector<cudnnBackendDescriptor_t> operations;
  for (const CudnnDescriptor& operation : operations_) operations.push_back(operation.get());
  CudnnDescriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
            std::span<const cudnnBackendDescriptor_t>(operations));
  graph.finalize();
  return graph;
}

std::vector<CudnnDescriptor> cudnn_engines(const CudnnDescriptor& graph, const CudnnDescriptor& device,
                                           std::string& why) {
  CudnnDescriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, CUDNN_HEUR_MODE_A);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device);
  if (!heuristics.finalize(&why)) return {};
  int64_t count = 0;
  check_cudnn(cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                       CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr),
              "cudnnBackendGetAttribute");
  std::vector<CudnnDescriptor> engines;
  std::vector<cudnnBackendDescriptor_t> places;
  for (int64_t i = 0; i < count; ++i)
    places.push_back(engines.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).get());
  int64_t written = 0;
  check_cudnn(cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                       CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &written, places.data()),
              "cudnnBackendGetAttribute");
  while (std::ssize(engines) > written) engines.pop_back();
  if (engines.empty()) why = "it has no kernel for this shape on this device";
  return engines;
}

std::optional<CudnnPlan> CudnnPlan::make(const CudnnGraph& graph, const CudnnDescriptor& device,
                                         size_t most_bytes, std::string& why) {
  const CudnnDescriptor finished = graph.finish();
  for (const CudnnDescriptor& engine : cudnn_engines(finished, device, why)) {
    CudnnDescriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, device);
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, engine);
    if (!plan.finalize(&why)) continue;
    const int64_t bytes = plan.int64(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
    if (bytes <= static_cast<int64_t>(most_bytes)) return CudnnPlan(std::move(plan), bytes);
    why = fmt::format("it needs {} bytes of workspace, of which there are {}", bytes, most_bytes);
  }
  return std::nullopt;
}

void CudnnPlan::run(cudnnHandle_t handle, std::span<const Argument> data, void* workspace) const {
  std::vector<int64_t> ids;
  std::vector<void*> pointers;
  for (const Argument& argument : data) {
    ids.push_back(argument.id);
    pointers.push_back(const_cast<void*>(argument.data));
  }
  CudnnDescriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, std::span<const int64_t>(ids));
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, std::span<void* const>(pointers));
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace);
  pack.finalize();
  check_cudnn(cudnnBackendExecute(handle, plan_.get(), pack.get()), "cudnnBackendExecute");
}

}  // namespace trainer::cuda

#endif
