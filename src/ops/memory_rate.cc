#include "ops/memory_rate.h"

#include <vector>

#include "base/statistics.h"
#include "device/call_times.h"

namespace trainer {
namespace {

constexpr size_t kAdditions = 5;

}  // namespace

double measure_memory_rate(KernelSet& kernels, std::span<std::byte> memory, Device& device) {
  const auto count = static_cast<int64_t>(memory.size() / (2 * sizeof(float)));
  auto* const sum = reinterpret_cast<float*>(memory.data());
  const float* const term = sum + count;
  std::vector<double> seconds;
  time_calls(
      device.compute(), [&] { kernels.add(ref(sum), ref(term), count); }, 0, kAdditions, seconds);
  // Two are read and one written.
  return 3 * static_cast<double>(count) * sizeof(float) / median(seconds);
}

}  // namespace trainer
