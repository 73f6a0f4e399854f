#include "sim/recovery_lane.h"

#include <gtest/gtest.h>

#include "schedule/problems.h"
#include "sim/step_analysis.h"

namespace trainer {
namespace {

// Forward 1, recovery 1, backward 2 of every block; nothing else takes time.
CostTable costs_of(const StepGraph& graph, int layers) {
  CostTable costs;
  for (const Task& task : graph.tasks) {
    const bool block = task.at.layer_begin > 0 && task.at.layer_begin < layers - 1;
    const bool one = task.kind == TaskKind::kForward || task.kind == TaskKind::kRecover;
    costs.seconds.push_back(!block ? 0 : one ? 1 : task.kind == TaskKind::kBackward ? 2 : 0);
  }
  return costs;
}

StepGraph recovered_graph(int stages, int micro_batches, bool ahead) {
  Problem problem = testing::small_problem(2 * stages, stages, 1, micro_batches, false, 2);
  problem.kept = choose_kept(problem, ActivationPolicy::kCheckpoint, true, 0);
  if (ahead) problem.passes = {"forward_side_recovery"};
  return build_step_graph(problem);
}

// With a lane of its own, recovery leaves the main path; 4/3 is what that gives a long pipeline step.
TEST(RecoveryLane, TakesRecoveryOffTheMainPath) {
  const int stages = 2, micro_batches = 64, layers = 2 * stages + 2;
  const StepGraph in_line = recovered_graph(stages, micro_batches, false);
  const StepGraph own = with_recovery_lane(recovered_graph(stages, micro_batches, true));
  const StepAnalysis before = analyse_step(in_line, costs_of(in_line, layers));
  const StepAnalysis after = analyse_step(own, costs_of(own, layers));
  EXPECT_DOUBLE_EQ(after.main_path, before.main_path);
  EXPECT_LT(after.recovery, 0.03 * after.main_path);
  EXPECT_NEAR(before.step_seconds / after.step_seconds, 4.0 / 3, 0.03);
}

TEST(RecoveryLane, LeavesRecoveryInLineWhereItIs) {
  const StepGraph graph = recovered_graph(2, 4, false);
  EXPECT_EQ(with_recovery_lane(graph).lanes.size(), graph.lanes.size());
}

}  // namespace
}  // namespace trainer
