// The machine's ceiling for matrix products, measured with the kernels that training uses.
#pragma once

#include <span>

#include "device/device.h"
#include "ops/kernel_set.h"

namespace trainer {

// y[m, n] = x[m, k] w[n, k]^T.
struct GemmShape {
  int64_t m = 0, n = 0, k = 0;
};

inline constexpr double kGemmRateSeconds = 0.6;

// FLOPs per second of the best of the shapes, in any of the three directions of a linear layer; each is the
// median of its repeats, which take about `seconds` in all. Allocates operands and a workspace, and takes
// over the kernels', which are those of the device's compute queue.
double measure_gemm_rate(KernelSet& kernels, DType dtype, std::span<const GemmShape> shapes,
                         double seconds = kGemmRateSeconds, Device& device = host_device());

}  // namespace trainer
