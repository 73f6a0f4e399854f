#include "sim/pace.h"

#include <cmath>

namespace trainer {
namespace {

// How long work from `begin` to `end` (in pieces at an even pace) takes against an even pace.
double mean_between(const std::vector<double>& pieces, double begin, double end) {
  double sum = 0;
  for (double at = begin; at < end;) {
    const double next = std::min(end, std::floor(at) + 1);
    sum += (next - at) * pieces[static_cast<size_t>(at) % pieces.size()];
    at = next;
  }
  return sum / (end - begin);
}

}  // namespace

CostTable at_pace(const StepGraph& graph, CostTable costs, const Pace& pace, size_t first) {
  for (const Lane& lane : graph.lanes) {
    if (lane.kind != LaneKind::kCompute) continue;
    const auto& pieces = pace.ranks[static_cast<size_t>(lane.rank) % pace.ranks.size()];
    double begin = static_cast<double>(first);
    for (const TaskId id : lane.program) {
      const auto i = static_cast<size_t>(id);
      const double seconds = costs.seconds[i] + (costs.bytes[i] > 0 ? costs.bytes[i] / costs.rate[i] : 0);
      const double end = begin + seconds / pace.piece_seconds;
      if (!(end > begin)) continue;
      const double factor = mean_between(pieces, begin, end);
      costs.seconds[i] *= factor;
      costs.bytes[i] *= factor;
      begin = end;
    }
  }
  return costs;
}

}  // namespace trainer
