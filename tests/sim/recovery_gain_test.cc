// What recovering ahead of the backward pass is worth on one compute lane a stage: it conserves work, so only
// idle time can be won.
#include <gtest/gtest.h>

#include "schedule/problems.h"
#include "sim/step_analysis.h"

namespace trainer {
namespace {

// forward : recompute : backward = 1 : 1 : 2 a block, two blocks a stage.
double step_seconds(int stages, int micro_batches, bool ahead, bool last_stage_keeps, int buffers = 0) {
  Problem p = testing::small_problem(2 * stages, stages, 1, micro_batches);
  p.kept = choose_kept(p, ActivationPolicy::kCheckpoint, last_stage_keeps, 0);
  p.passes = {"layer_state_pipeline"};
  if (ahead) p.passes.emplace_back("forward_side_recovery");
  p.recovery_buffers = buffers;
  const StepGraph graph = build_step_graph(p);
  CostTable costs;
  for (const Task& task : graph.tasks) {
    const bool block = task.at.layer_begin > 0 && task.at.layer_begin < p.layer_count() - 1;
    const bool once = task.kind == TaskKind::kForward || task.kind == TaskKind::kRecover;
    costs.seconds.push_back(!block ? 0 : task.kind == TaskKind::kBackward ? 2 : once ? 1 : 0);
  }
  return steady_step_seconds(graph, costs);
}

// With the same last stage on both sides.
double gain(int stages, int micro_batches, int buffers = 0) {
  return step_seconds(stages, micro_batches, false, true) /
         step_seconds(stages, micro_batches, true, true, buffers);
}

TEST(RecoveryGain, IsTheIdleTimeThatRecoveriesFill) {
  EXPECT_DOUBLE_EQ(gain(2, 4), 36.0 / 32);
  EXPECT_DOUBLE_EQ(gain(2, 8), 68.0 / 64);
  EXPECT_EQ(gain(1, 8), 1);  // one stage waits for nothing
}

// The last stage recovers as well without the mechanism, and keeps with it. In units of a block's forward:
// every stage but the last has M (2 + 2 + 4) to do, the last but one of them between P - 2 forwards before it
// and P - 2 backwards after it, which is the least a step can take.
TEST(RecoveryGain, ReachesTheLeastThatOneLaneAStageCanTake) {
  for (const auto& [stages, micro_batches, published] :
       {std::tuple{2, 32, 1.031}, {2, 8, 1.125}, {4, 8, 1.158}, {8, 32, 1.068}}) {
    const double ahead = step_seconds(stages, micro_batches, true, true);
    EXPECT_EQ(ahead, 8 * micro_batches + 6 * (stages - 2)) << stages << " stages";
    const double at_backward = step_seconds(stages, micro_batches, false, false);
    EXPECT_EQ(at_backward, 8 * (micro_batches + stages - 1));
    EXPECT_NEAR(at_backward / ahead, published, 0.0006) << stages << " stages, " << micro_batches;
  }
}

TEST(RecoveryGain, FewerBuffersWinLess) {
  EXPECT_LT(gain(2, 8, 1), gain(2, 8, 2));
  EXPECT_LT(gain(2, 8, 2), gain(2, 8, 4));
  EXPECT_GT(gain(2, 8, 1), 1);
}

}  // namespace
}  // namespace trainer
