#include "app/backend.h"

#include <algorithm>

#include "base/error.h"
#include "comm/nccl/device_transport.h"
#include "device/cuda/cuda_device.h"

namespace trainer {
namespace {

// Among the ranks of its machine.
int local_rank(const Communicator& world) {
  const std::vector<int> nodes = world.nodes();
  const auto me = static_cast<size_t>(world.rank());
  return static_cast<int>(std::count(nodes.begin(), nodes.begin() + world.rank(), nodes[me]));
}

Backend make_cuda_backend(const Communicator& world) {
  const int count = cuda_device_count();
  if (count == 0)
    input_error(
        "key 'device.kind' is \"cuda\", but {}; set it to \"host\", or start on a machine with an NVIDIA GPU "
        "a "
        "program that was built with the CUDA toolkit",
        why_no_cuda_device());
  Backend backend;
  backend.device = make_cuda_device(local_rank(world) % count);
  Device& device = *backend.device;
  backend.transport = [&device](std::unique_ptr<Communicator> group, DeviceQueue& queue) {
    return make_device_communicator(std::move(group), device, queue);
  };
  return backend;
}

}  // namespace

Backend make_backend(const Config& config, const Communicator& world) {
  switch (config.device.kind) {
    case DeviceKind::kHost:
      break;
    case DeviceKind::kCuda:
      return make_cuda_backend(world);
  }
  return make_host_kernels(static_cast<int>(config.device.threads));
}

}  // namespace trainer
