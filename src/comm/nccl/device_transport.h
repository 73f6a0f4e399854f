// How messages between CUDA devices travel. NCCL appears in this folder only.
#pragma once

#include "comm/communicator.h"
#include "device/device.h"

namespace trainer {

// A communicator for memory of `device`, of make_cuda_device, over one of host memory: by NCCL where each
// rank of the group has a device of its own, else through pinned host memory (stage_through_host), as in
// builds without NCCL. Collective over `group`; `queue` is of the thread that uses it. What is sent must be
// complete when it is sent. Both return the same bits.
std::unique_ptr<Communicator> make_device_communicator(std::unique_ptr<Communicator> group, Device& device,
                                                       DeviceQueue& queue);

}  // namespace trainer
