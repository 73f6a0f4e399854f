#include "sim/predict.h"

#include "base/error.h"
#include "schedule/passes.h"
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

Problem folded(Problem problem) {
  problem.ranks.clear();
  for (int stage = 0; stage < problem.stages; ++stage) problem.ranks.push_back(problem.rank_of(stage, 0));
  return problem;
}

Prediction predict_step(const Problem& problem, const Platform& platform, int steps) {
  Prediction p;
  if (why_not_foldable(problem, platform).empty()) {
    p.problem = folded(problem);
  } else {
    p.problem = problem;
    p.problem.ranks.clear();
  }
  p.graph = build_step_graph(p.problem);
  if (platform.recovery_has_its_own_lane) p.graph = with_recovery_lane(std::move(p.graph));
  p.costs = cost_model(p.graph, p.problem, platform);
  p.step = analyse_step(p.graph, p.costs, steps);
  return p;
}

}  // namespace trainer
