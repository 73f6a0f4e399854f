#include "sim/measured_costs.h"

#include <gtest/gtest.h>

#include "schedule/problems.h"
#include "sim/step_analysis.h"

namespace trainer {
namespace {

TEST(MeasuredCosts, TheSimulationOfWhatASimulationMeasuredTakesAsLong) {
  Problem problem = testing::small_problem(4, 2, 1, 4);
  problem.kept = choose_kept(problem, ActivationPolicy::kCheckpoint, true, 0);
  problem.passes = pass_names();
  const StepGraph graph = build_step_graph(problem);
  CostTable costs;
  for (const Task& task : graph.tasks) {
    const double layer = 1 + 0.1 * std::max<int>(task.at.layer_begin, 0);
    costs.seconds.push_back(task.kind == TaskKind::kReceive    ? 0
                            : task.kind == TaskKind::kBackward ? 2 * layer
                            : task.kind == TaskKind::kSend     ? 0.1
                                                               : layer);
  }
  const Simulation simulation = simulate(graph, costs, 3);
  const CostTable fitted = measured_costs(graph, problem, to_timeline(graph, simulation));
  // An absorbed recovery has no event of its own in a simulation; all others come back.
  for (size_t id = 0; id < graph.tasks.size(); ++id) {
    const TaskKind kind = graph.tasks[id].kind;
    if (kind == TaskKind::kRecover || kind == TaskKind::kBackward) continue;
    EXPECT_NEAR(fitted.seconds[id], costs.seconds[id], 1e-9) << graph.describe(static_cast<TaskId>(id));
  }
}

TEST(MeasuredCosts, TheMedianCountsAndWhatOnlyWaitsDoesNot) {
  const Problem problem = testing::small_problem(2, 1, 1, 1);
  const StepGraph graph = build_step_graph(problem);
  Timeline timeline;
  const auto event = [&](const char* kind, const char* lane, int layer, double seconds) {
    TimelineEvent e;
    e.kind = kind;
    e.lane = lane;
    e.layer = layer;
    e.end = seconds;
    timeline.events.push_back(e);
  };
  event("Forward", "compute", 1, 3);
  event("Forward", "compute", 1, 1);
  event("Forward", "compute", 1, 100);
  const CostTable costs = measured_costs(graph, problem, timeline);
  for (size_t id = 0; id < graph.tasks.size(); ++id) {
    const Task& task = graph.tasks[id];
    const bool measured = task.kind == TaskKind::kForward && task.at.layer_begin == 1;
    EXPECT_EQ(costs.seconds[id], measured ? 3 : 0) << graph.describe(static_cast<TaskId>(id));
  }
}

}  // namespace
}  // namespace trainer
