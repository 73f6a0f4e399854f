// CUDA devices. CUDA's own types appear in this folder, src/comm/nccl and kernels/cuda only. A build without
// the toolkit has the same functions, which find no device.
#pragma once

#include <memory>
#include <string>

#include "device/device.h"

namespace trainer {

// Devices that this process may use: 0 where there is no driver, none that is new enough, or no device.
// Throws RunError when the driver fails in another way.
int cuda_device_count();
// Why there are none, for messages; empty where there are.
std::string why_no_cuda_device();

// Two streams: of the lane that computes, and, before it where both have work, of transfers. `index` is below
// cuda_device_count().
std::unique_ptr<Device> make_cuda_device(int index);

// For what is made for a device of make_cuda_device: its index, and the cudaStream_t of one of its queues.
int cuda_index(const Device& device);
void* cuda_stream(DeviceQueue& queue);
// Tells devices of all machines apart.
std::string cuda_device_id(const Device& device);

}  // namespace trainer
