#include "ops/gemm_rate.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>
#include <vector>

namespace trainer {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

constexpr size_t kAlignment = 64;
size_t aligned(int64_t elements, size_t element_bytes) {
  return (static_cast<size_t>(elements) * element_bytes + kAlignment - 1) / kAlignment * kAlignment;
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
    const std::function<void()> directions[] = {
        [&] {
          kernels.linear_forward(y, x, w, {nullptr, dtype}, s.m, s.n, s.k);
        },
        [&] { kernels.linear_backward_input(x, y, w, s.m, s.n, s.k, false); },
        [&] { kernels.linear_backward_weight(dw, y, x, s.m, s.n, s.k); }};
    for (const auto& run : directions) {
      run();
      device.compute().synchronise();
      std::vector<double> times;
      for (const double begin = now(); times.size() < 3 || now() - begin < share;) {
        const double start = now();
        run();
        device.compute().synchronise();
        times.push_back(now() - start);
      }
      std::nth_element(times.begin(), times.begin() + static_cast<int64_t>(times.size() / 2), times.end());
      best = std::max(
          best, 2.0 * static_cast<double>(s.m * s.n) * static_cast<double>(s.k) / times[times.size() / 2]);
    }
  }
  return best;
}

}  // namespace trainer
