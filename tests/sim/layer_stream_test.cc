// The layer_stream front end on virtual time.
#include "schedule/layer_stream.h"

#include <gtest/gtest.h>

#include "schedule/memory.h"
#include "schedule/problems.h"
#include "sim/simulator.h"

namespace trainer {
namespace {

constexpr int kBlocks = 8;

// Forward and recovery of a block take 1, its backward 2, copies what `bytes_per_second` says.
double step_seconds(const CheckpointSchedule& schedule, double bytes_per_second, int steps = 1) {
  StepGraphBuilder builder;
  layer_stream(builder, testing::small_problem(kBlocks, 1, 1, 1), {schedule});
  const StepGraph graph = place_memory(builder.build());
  CostTable costs;
  for (const Task& t : graph.tasks) {
    const bool block = t.at.layer_begin > 0 && t.at.layer_begin <= kBlocks;
    double seconds = static_cast<double>(t.bytes) / bytes_per_second;
    if (block && (t.kind == TaskKind::kForward || t.kind == TaskKind::kRecover)) seconds = 1;
    if (block && t.kind == TaskKind::kBackward) seconds = 2;
    costs.seconds.push_back(seconds);
  }
  return simulate(graph, costs, steps).end / steps;
}

CheckpointSchedule away(int boundary) {
  CheckpointSchedule s = fixed_interval(kBlocks, 1);
  s.boundaries[static_cast<size_t>(boundary)] = {
      BoundaryHome::kHost, {{boundary, 512}}, {}, {}, {{boundary + 1, 512}}};
  return s;
}

TEST(LayerStreamSimulation, FastCopiesHideAndRecomputeCostsItsForwards) {
  const double fast = 1e9;
  EXPECT_NEAR(step_seconds(fixed_interval(kBlocks, 1), fast), 4 * kBlocks, 1e-3);
  EXPECT_NEAR(step_seconds(fixed_interval(kBlocks, 4), fast), 4 * kBlocks + 6, 1e-3);
  EXPECT_NEAR(step_seconds(away(3), fast), 4 * kBlocks, 1e-3);
}

TEST(LayerStreamSimulation, SlowCopiesAreWaitedFor) {
  // A block's weights take about as long as its forward; a boundary that leaves takes its share of the lane.
  const double slow = 400;
  EXPECT_GT(step_seconds(fixed_interval(kBlocks, 1), slow), 4 * kBlocks + 1);
  EXPECT_GT(step_seconds(away(7), 150), step_seconds(fixed_interval(kBlocks, 1), 150));
}

TEST(LayerStreamSimulation, StepsFollowEachOtherWithoutEnd) {
  for (double rate : {100.0, 1e9}) EXPECT_GT(step_seconds(fixed_interval(kBlocks, 4), rate, 5), 0);
}

}  // namespace
}  // namespace trainer
