#include "ops/gemm_rate.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/philox.h"
#include "base/statistics.h"
#include "device/call_times.h"
#include "ops/element.h"

namespace trainer {
namespace {

constexpr size_t kAlignment = 64;
size_t aligned(int64_t elements, size_t element_bytes) {
  return (static_cast<size_t>(elements) * element_bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// With values in [-1, 1): a device needs less power for products of zeros, and is faster at them.
void fill_random(DeviceQueue& queue, Ref to, int64_t count) {
  const int64_t drawn = std::min<int64_t>(count, 1 << 16);
  const size_t bytes = static_cast<size_t>(count) * size_of(to.dtype),
               drawn_bytes = static_cast<size_t>(drawn) * size_of(to.dtype);
  write_on_host(queue, static_cast<std::byte*>(to.data), drawn_bytes, [&](std::span<std::byte> values) {
    const Philox random(1);
    for (int64_t i = 0; i < drawn; ++i)
      store_element({values.data(), to.dtype}, i, random.block(static_cast<uint64_t>(i))[0] * 0x1p-31 - 1);
  });
  for (size_t filled = drawn_bytes; filled < bytes; filled *= 2)
    queue.copy(static_cast<std::byte*>(to.data) + filled, to.data, std::min(filled, bytes - filled));
}

// Operands of any of some shapes, and the workspace of kernels that multiply them.
class Operands {
 public:
  Operands(KernelSet& kernels, DType dtype, std::span<const GemmShape> shapes, Device& device)
      : kernels_(kernels) {
    WorkspaceShape bounds;
    bounds.dtype = dtype;
    int64_t inputs = 0, weights = 0, outputs = 0;
    for (const GemmShape& s : shapes) {
      bounds.tokens = std::max(bounds.tokens, s.m);
      bounds.widest_row = std::max({bounds.widest_row, s.n, s.k});
      bounds.hidden = std::max(bounds.hidden, s.k);
      inputs = std::max(inputs, s.m * s.k);
      weights = std::max(weights, s.n * s.k);
      outputs = std::max(outputs, s.m * s.n);
    }
    const size_t workspace = kernels.workspace_bytes(bounds), element = size_of(dtype);
    memory_ = device.allocate(2 * aligned(inputs, element) + aligned(weights, element) +
                              aligned(outputs, element) + aligned(weights, sizeof(float)) + workspace);
    std::byte* next = memory_->bytes().data();
    const auto take = [&](size_t bytes) { return std::exchange(next, next + bytes); };
    x_ = {take(aligned(inputs, element)), dtype};
    dx_ = {take(aligned(inputs, element)), dtype};
    w_ = {take(aligned(weights, element)), dtype};
    y_ = {take(aligned(outputs, element)), dtype};
    dw_ = reinterpret_cast<float*>(take(aligned(weights, sizeof(float))));
    kernels.grant_workspace({next, workspace});
    fill_random(device.compute(), x_, inputs);
    fill_random(device.compute(), w_, weights);
  }

  void multiply(const GemmShape& s, int direction) {
    if (direction == 0) kernels_.linear_forward(y_, x_, w_, {nullptr, y_.dtype}, s.m, s.n, s.k);
    if (direction == 1) kernels_.linear_backward_input(dx_, y_, w_, s.m, s.n, s.k, false);
    if (direction == 2) kernels_.linear_backward_weight(dw_, y_, x_, s.m, s.n, s.k, true);
  }

 private:
  KernelSet& kernels_;
  DeviceMemoryPtr memory_;
  Ref x_, dx_, w_, y_;
  float* dw_;
};

double flops(const GemmShape& s) { return 2.0 * static_cast<double>(s.m * s.n) * static_cast<double>(s.k); }

constexpr int kDirections = 3;
constexpr size_t kLeastCalls = 3;

}  // namespace

std::array<double, 3> measure_gemm_rates(KernelSet& kernels, DType dtype, const GemmShape& shape,
                                         double seconds, Device& device) {
  Operands operands(kernels, dtype, std::span(&shape, 1), device);
  std::array<double, kDirections> rates;
  for (int d = 0; d < kDirections; ++d) {
    std::vector<double> times;
    const auto call = [&] { operands.multiply(shape, d); };
    time_calls(device.compute(), call, seconds / kDirections, kLeastCalls, times);
    rates[static_cast<size_t>(d)] = flops(shape) / median(times);
  }
  return rates;
}

double measure_gemm_rate(KernelSet& kernels, DType dtype, std::span<const GemmShape> shapes, double seconds,
                         Device& device) {
  double best = 0;
  for (const GemmShape& s : shapes) {
    for (const double rate :
         measure_gemm_rates(kernels, dtype, s, seconds / static_cast<double>(shapes.size()), device))
      best = std::max(best, rate);
  }
  return best;
}

double measure_gemm_rate_in_turn(KernelSet& kernels, DType dtype, std::span<const GemmShape> shapes,
                                 double seconds, Device& device) {
  Operands operands(kernels, dtype, shapes, device);
  double all = 0;
  for (const GemmShape& s : shapes) all += kDirections * flops(s);
  std::vector<double> times;
  const auto turn = [&] {
    for (int d = 0; d < kDirections; ++d)
      for (const GemmShape& s : shapes) operands.multiply(s, d);
  };
  time_calls(device.compute(), turn, seconds, 1, times);
  return all / median(times);
}

}  // namespace trainer
