// The machine's ceiling for what only moves bytes, measured with the kernels that training uses.
#pragma once

#include <cstddef>
#include <span>

#include "device/device.h"
#include "ops/kernel_set.h"

namespace trainer {

// Bytes read and written a second by a kernel that adds one half of `memory` to the other: the median of some
// repeats. `memory` should be more than caches hold; what is in it is taken for numbers and changed.
// `kernels` are those of the device's compute queue.
double measure_memory_rate(KernelSet& kernels, std::span<std::byte> memory, Device& device = host_device());

}  // namespace trainer
