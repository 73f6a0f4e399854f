#include "device/call_times.h"

#include <algorithm>
#include <chrono>

namespace trainer {
namespace {

constexpr double kLongCall = 0.1;  // seconds; what caches hold from before does not matter
constexpr double kSampleSeconds = 5e-3;
constexpr double kMostCalls = 500;  // fewer than a queue takes before it makes the caller wait

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

void time_calls(DeviceQueue& queue, const std::function<void()>& call, double seconds, size_t least,
                std::vector<double>& times) {
  const auto sample = [&](int calls) {
    const double start = seconds_now();
    for (int i = 0; i < calls; ++i) call();
    queue.synchronise();
    return (seconds_now() - start) / calls;
  };
  int calls = 1;
  if (times.empty() || times.back() < kLongCall) {
    sample(1);  // a first call may also choose algorithms
    if (!queue.host_reaches())
      calls = static_cast<int>(std::clamp(std::min(kSampleSeconds, seconds) / sample(1), 1.0, kMostCalls));
  }
  const size_t before = times.size();
  for (const double begin = seconds_now(); times.size() < before + least || seconds_now() - begin < seconds;)
    times.push_back(sample(calls));
}

}  // namespace trainer
