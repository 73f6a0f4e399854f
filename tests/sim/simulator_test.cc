#include "sim/simulator.h"

#include <gtest/gtest.h>

namespace trainer {
namespace {

Task task(TaskKind kind, LaneId lane, std::vector<Use> uses) {
  Task t;
  t.kind = kind;
  t.lane = lane;
  t.at.rank = 0;
  t.uses = std::move(uses);
  return t;
}

TEST(Simulator, ALaneDoesOneThingAtATimeAndConsumersWait) {
  StepGraphBuilder builder;
  const LaneId a = builder.lane(0, LaneKind::kCompute), b = builder.lane(0, LaneKind::kCollective);
  Buffer buffer;
  buffer.name = "x";
  buffer.bytes = 64;
  const BufferId x = builder.add_buffer(buffer);
  const TaskId first = builder.append(task(TaskKind::kForward, a, {{x, Access::kWrite, Role::kOutput}}));
  const TaskId second = builder.append(task(TaskKind::kGradSync, b, {{x, Access::kRead, Role::kInput}}));
  const TaskId third = builder.append(task(TaskKind::kForward, a, {}));
  const StepGraph graph = builder.build();
  CostTable costs;
  costs.seconds.resize(graph.tasks.size());
  costs.seconds[static_cast<size_t>(first)] = 1;
  costs.seconds[static_cast<size_t>(second)] = 5;
  costs.seconds[static_cast<size_t>(third)] = 2;
  const Simulation simulation = simulate(graph, costs);
  ASSERT_EQ(simulation.runs.size(), 3u);
  EXPECT_EQ(simulation.runs[1].instance.task, third);
  EXPECT_EQ(simulation.runs[1].begin, 1);
  EXPECT_EQ(simulation.runs[2].begin, 1);
  EXPECT_EQ(simulation.end, 6);
}

}  // namespace
}  // namespace trainer
