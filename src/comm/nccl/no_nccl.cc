// What a build without NCCL has instead of nccl_channels.cc.
#include "comm/nccl/device_transport.h"
#include "comm/staged_communicator.h"

namespace trainer {

std::unique_ptr<Communicator> make_device_communicator(std::unique_ptr<Communicator> group, Device& device,
                                                       DeviceQueue& queue) {
  return stage_through_host(std::move(group), device, queue);
}

}  // namespace trainer
