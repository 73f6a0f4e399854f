#include "ops/gemm_rate.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "base/philox.h"
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

}  // namespace

double measure_gemm_rate(KernelSet& kernels, DType dtype, std::span<const GemmShape> shapes, double seconds,
                         Device& device) {
  double best = 0;
  const double share = seconds / static_cast<double>(3 * shapes.size());
  for (const GemmShape& s : shapes) {
    WorkspaceShape bounds;
    bounds.dtype = dtype;
    bounds.tokens = s.m;
    bounds.widest_row = std::max(s.n, s.k);
    bounds.hidden = s.k;
    const size_t workspace = kernels.workspace_bytes(bounds), element = size_of(dtype);
    const DeviceMemoryPtr memory =
        device.allocate(aligned(s.m * s.k, element) + aligned(s.n * s.k, element) +
                        aligned(s.m * s.n, element) + aligned(s.n * s.k, sizeof(float)) + workspace);
    std::byte* next = memory->bytes().data();
    const auto take = [&](size_t bytes) { return std::exchange(next, next + bytes); };
    const Ref x{take(aligned(s.m * s.k, element)), dtype}, w{take(aligned(s.n * s.k, element)), dtype},
        y{take(aligned(s.m * s.n, element)), dtype};
    auto* dw = reinterpret_cast<float*>(take(aligned(s.n * s.k, sizeof(float))));
    kernels.grant_workspace({next, workspace});
    fill_random(device.compute(), x, s.m * s.k);
    fill_random(device.compute(), w, s.n * s.k);
    const std::function<void()> directions[] = {
        [&] {
          kernels.linear_forward(y, x, w, {nullptr, dtype}, s.m, s.n, s.k);
        },
        [&] { kernels.linear_backward_input(x, y, w, s.m, s.n, s.k, false); },
        [&] { kernels.linear_backward_weight(dw, y, x, s.m, s.n, s.k, true); }};
    for (const auto& run : directions) {
      std::vector<double> times;
      time_calls(device.compute(), run, share, 3, times);
      std::nth_element(times.begin(), times.begin() + static_cast<int64_t>(times.size() / 2), times.end());
      best = std::max(
          best, 2.0 * static_cast<double>(s.m * s.n) * static_cast<double>(s.k) / times[times.size() / 2]);
    }
  }
  return best;
}

}  // namespace trainer
