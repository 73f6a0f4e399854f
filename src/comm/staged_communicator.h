// Messages of memory that the host does not reach, over a communicator that knows host memory only.
#pragma once

#include "comm/communicator.h"
#include "device/device.h"

namespace trainer {

// Sends and receives device memory through pinned host memory: a send is copied out first, what was received
// is copied in. Progress is made by `test` of any of its requests. The pinned memory is as much as the
// messages under way at once need; it is kept for later messages. `device` and `queue`, in which the copies
// are made, outlive it; `queue` belongs to the thread that uses the communicator.
std::unique_ptr<Communicator> stage_through_host(std::unique_ptr<Communicator> inner, Device& device,
                                                 DeviceQueue& queue);

}  // namespace trainer
