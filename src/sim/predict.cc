#include "sim/predict.h"

#include <algorithm>

#include "base/error.h"
#include "schedule/passes.h"
#include "sim/pace.h"
#include "sim/recovery_lane.h"

namespace trainer {

std::string why_not_foldable(const Problem& problem, const Platform& platform) {
  const int replicas = problem.replicas, node = platform.devices_per_node;
  if (problem.world_size() <= node || replicas % node == 0 || node % replicas == 0) return {};
  return fmt::format(
      "{} replicas of a stage neither fill nodes of {} devices nor divide them evenly, so they do not share "
      "their nodes' links alike",
      replicas, node);
}

namespace {

constexpr int kUnevenRanks = 64;

// Of the paces that the platform was found at, the one at which the step takes its median time.
CostTable at_median_pace(const StepGraph& graph, const CostTable& costs, const Pace& pace, int steps) {
  constexpr size_t kPaces = 15;
  const size_t pieces = pace.ranks.front().size(), count = std::min(kPaces, pieces);
  std::vector<std::pair<double, size_t>> found;
  for (size_t i = 0; i < count; ++i) {
    const size_t first = i * pieces / count;
    found.emplace_back(steady_step_seconds(graph, at_pace(graph, costs, pace, first), steps), first);
  }
  std::nth_element(found.begin(), found.begin() + static_cast<ptrdiff_t>(count / 2), found.end());
  return at_pace(graph, costs, pace, found[count / 2].second);
}

}  // namespace

Problem folded(Problem problem) {
  problem.ranks.clear();
  for (int stage = 0; stage < problem.stages; ++stage) problem.ranks.push_back(problem.rank_of(stage, 0));
  return problem;
}

Prediction predict_step(const Problem& problem, const Platform& platform, int steps) {
  Prediction p;
  // Replicas of uneven ranks wait for one another, as far as all ranks are few enough to simulate many times.
  const bool uneven = !platform.pace.ranks.empty() && problem.world_size() <= kUnevenRanks;
  if (!uneven && why_not_foldable(problem, platform).empty()) {
    p.problem = folded(problem);
  } else {
    p.problem = problem;
    p.problem.ranks.clear();
  }
  p.graph = build_step_graph(p.problem);
  if (platform.recovery_has_its_own_lane) p.graph = with_recovery_lane(std::move(p.graph));
  p.costs = cost_model(p.graph, p.problem, platform);
  if (uneven) p.costs = at_median_pace(p.graph, p.costs, platform.pace, steps);
  p.step = analyse_step(p.graph, p.costs, steps);
  return p;
}

}  // namespace trainer
