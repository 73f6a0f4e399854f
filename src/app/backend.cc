#include "app/backend.h"

#include "app/kernels.h"
#include "base/error.h"
#include "comm/nccl/device_transport.h"
#include "comm/number_nodes.h"
#include "device/cuda/cuda_device.h"
#include "ops/cuda_kernels.h"

namespace trainer {
namespace {

RankBackend make_cuda_backend(const Communicator& world) {
  const int count = cuda_device_count();
  if (count == 0)
    input_error(
        "key 'device.kind' is \"cuda\", but {}; set it to \"host\", or start on a machine with an NVIDIA GPU "
        "a program that was built with the CUDA toolkit",
        why_no_cuda_device());
  RankBackend backend;
  backend.device = make_cuda_device(place_on_node(world.nodes(), world.rank()) % count);
  Device& device = *backend.device;
  backend.kernels = make_cuda_kernels(cuda_stream(device.compute()));
  backend.transfer_kernels = make_cuda_kernels(cuda_stream(device.transfers()));
  backend.transport = [&device](std::unique_ptr<Communicator> group, DeviceQueue& queue) {
    return make_device_communicator(std::move(group), device, queue);
  };
  return backend;
}

}  // namespace

RankBackend make_backend(const Config& config, const Communicator& world) {
  if (config.device.kind == DeviceKind::kCuda) return make_cuda_backend(world);
  return make_kernels(config.device);
}

}  // namespace trainer
