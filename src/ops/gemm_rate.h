// The machine's ceiling for matrix products, measured with the kernels that training uses.
#pragma once

#include <array>
#include <span>

#include "device/device.h"
#include "ops/kernel_set.h"

namespace trainer {

// y[m, n] = x[m, k] w[n, k]^T.
struct GemmShape {
  int64_t m = 0, n = 0, k = 0;
};

inline constexpr double kGemmRateSeconds = 0.6;

// All of these take about `seconds`, allocate operands and a workspace, and take over the kernels', which are
// those of the device's compute queue.

// FLOPs per second in each direction of a linear layer: forward, gradient of the input, gradient of the
// weight. Medians of repeats.
std::array<double, 3> measure_gemm_rates(KernelSet& kernels, DType dtype, const GemmShape& shape,
                                         double seconds, Device& device = host_device());
// The best of the shapes in any direction.
double measure_gemm_rate(KernelSet& kernels, DType dtype, std::span<const GemmShape> shapes,
                         double seconds = kGemmRateSeconds, Device& device = host_device());
// All shapes in all directions in turn, one call each, with operands that they share: all FLOPs over all of
// the time.
double measure_gemm_rate_in_turn(KernelSet& kernels, DType dtype, std::span<const GemmShape> shapes,
                                 double seconds, Device& device = host_device());

}  // namespace trainer
