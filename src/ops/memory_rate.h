// The machine's ceiling for what only moves bytes, measured with the kernels that training uses.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "ops/kernel_set.h"

namespace trainer {

// Bytes read and written a second by a kernel that adds one array to another: the median of some repeats.
// Each array takes `array_bytes`; the two should be more than caches hold. Allocates them. `kernels` are
// those of the device's compute queue.
double measure_memory_rate(KernelSet& kernels, int64_t array_bytes, Device& device = host_device());

}  // namespace trainer
