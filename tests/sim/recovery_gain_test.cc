// What recovering ahead of the backward pass is worth on one compute lane a stage: it conserves work, so only
// idle time can be won.
#include <gtest/gtest.h>

#include "schedule/problems.h"
#include "sim/step_analysis.h"

namespace trainer {
namespace {

// forward : recompute : backward = 1 : 1 : 2 a block, two blocks a stage, the last stage keeps.
double step_seconds(int stages, int micro_batches, std::vector<std::string> passes, int buffers = 0) {
  Problem p = testing::small_problem(2 * stages, stages, 1, micro_batches);
  p.kept = choose_kept(p, ActivationPolicy::kCheckpoint, true, 0);
  p.passes = std::move(passes);
  p.recovery_buffers = buffers;
  const StepGraph graph = build_step_graph(p);
  CostTable costs;
  for (const Task& task : graph.tasks) {
    const bool block = task.at.layer_begin > 0 && task.at.layer_begin < p.layer_count() - 1;
    costs.seconds.push_back(!block                             ? 0
                            : task.kind == TaskKind::kBackward ? 2
                            : task.kind == TaskKind::kForward  ? 1
                            : task.kind == TaskKind::kRecover  ? 1
                                                               : 0);
  }
  return steady_step_seconds(graph, costs);
}

double gain(int stages, int micro_batches, int buffers = 0) {
  return step_seconds(stages, micro_batches, {"layer_state_pipeline"}) /
         step_seconds(stages, micro_batches, {"layer_state_pipeline", "forward_side_recovery"}, buffers);
}

TEST(RecoveryGain, IsTheIdleTimeThatRecoveriesFill) {
  EXPECT_NEAR(gain(2, 4), 1.125, 0.005);
  EXPECT_NEAR(gain(2, 8), 1.0625, 0.005);
  EXPECT_GT(gain(4, 8), 1.09);
  // One stage waits for nothing.
  EXPECT_EQ(gain(1, 8), 1);
}

TEST(RecoveryGain, FewerBuffersWinLess) {
  EXPECT_LT(gain(2, 8, 1), gain(2, 8, 2));
  EXPECT_LT(gain(2, 8, 2), gain(2, 8, 4));
  EXPECT_GT(gain(2, 8, 1), 1);
}

}  // namespace
}  // namespace trainer
