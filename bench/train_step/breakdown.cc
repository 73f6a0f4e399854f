#include "train_step/breakdown.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "base/statistics.h"

namespace trainer {

Json task_breakdown(const RankEvents& ranks, int layers, int steps) {
  std::map<std::string, double> seconds;
  for (const auto& events : ranks)
    for (const auto& e : events) {
      const char* part = e.layer < 0             ? ""
                         : e.layer == 0          ? " embedding"
                         : e.layer == layers - 1 ? " head"
                                                 : " blocks";
      seconds[e.kind + part] += (e.end - e.begin) / steps / static_cast<double>(ranks.size());
    }
  std::vector<std::pair<double, std::string>> sorted;
  for (const auto& [name, value] : seconds) sorted.emplace_back(value, name);
  std::sort(sorted.rbegin(), sorted.rend());
  Json list = Json::array();
  for (const auto& [value, name] : sorted) list.push_back({{"task", name}, {"seconds", value}});
  return list;
}

double ideal_pipeline(const RankEvents& ranks, double micro_batches) {
  double sum = 0, longest = 0;
  for (const auto& events : ranks) {
    double busy = 0;
    for (const TimelineEvent& e : events)
      if (e.lane == "compute") busy += e.end - e.begin;
    sum += busy;
    longest = std::max(longest, busy);
  }
  if (longest <= 0) return 1;
  const double mean = sum / static_cast<double>(ranks.size());
  return mean / (longest + (sum - longest) / micro_batches);
}

Json program_overhead(const std::vector<TimelineEvent>& events, const std::vector<double>& other_seconds,
                      int timed) {
  struct Step {
    double begin = INFINITY, end = 0, busy = 0;
  };
  std::map<int, Step> steps;
  for (const TimelineEvent& e : events) {
    if (e.lane != "compute") continue;
    Step& step = steps[e.step];
    step.begin = std::min(step.begin, e.begin);
    step.end = std::max(step.end, e.end);
    step.busy += e.end - e.begin;
  }
  std::vector<double> idle, other;
  for (const auto& [number, step] : steps) {
    if (static_cast<int>(other_seconds.size()) - number >= timed) continue;
    const double length = step.end - step.begin;
    idle.push_back(1 - step.busy / length);
    other.push_back(other_seconds[static_cast<size_t>(number) - 1] / length);
  }
  if (idle.empty()) return nullptr;
  return {{"idle_ratio", median(idle)}, {"other_threads_ratio", median(other)}};
}

Json kernel_breakdown(const KernelRecord& record, const MachineRates& rates, int steps, int ranks) {
  std::vector<std::pair<double, Json>> sorted;
  for (size_t k = 0; k < kKernelKinds; ++k) {
    const auto kernel = static_cast<Kernel>(k);
    const KernelSum& sum = record[kernel];
    if (sum.calls == 0) continue;
    const KernelWork work{sum.work.flops / steps, sum.work.bytes / steps};
    const double seconds = sum.seconds / steps / ranks;
    // Products have their operands in caches: their ceiling knows no bytes.
    const double best = rates.seconds({work.flops, multiplies(kernel) ? 0 : work.bytes});
    sorted.emplace_back(seconds, Json{{"kernel", name_of(kernel)},
                                      {"calls", sum.calls / steps},
                                      {"seconds", seconds},
                                      {"flops", work.flops},
                                      {"bytes", work.bytes},
                                      {"ratio", best / seconds}});
  }
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  Json list = Json::array();
  for (auto& [seconds, row] : sorted) list.push_back(std::move(row));
  return list;
}

}  // namespace trainer
