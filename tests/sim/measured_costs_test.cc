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

// Steps of which no two are alike, among them one whose collectives start late on one rank: the replay takes
// as long as they did, and its parts add up.
TEST(MeasuredCosts, AReplayTakesAsLongAsTheSteps) {
  Problem problem = testing::small_problem(4, 2, 2, 4);
  problem.kept = choose_kept(problem, ActivationPolicy::kCheckpoint, true, 0);
  problem.passes = pass_names();
  const StepGraph graph = build_step_graph(problem);
  constexpr int kSteps = 4;
  CostTable costs;
  costs.meeting = measured_costs(graph, problem, {}).meeting;
  for (int step = 0; step < kSteps; ++step) {
    auto& seconds = costs.seconds_in_step.emplace_back();
    for (size_t id = 0; id < graph.tasks.size(); ++id) {
      const TaskKind kind = graph.tasks[id].kind;
      const double draw = 1 + static_cast<double>((id * 7 + static_cast<size_t>(step) * 5) % 11) / 10;
      seconds.push_back(kind == TaskKind::kReceive ? 0 : draw);
    }
  }
  costs.seconds = costs.seconds_in_step.front();
  const Simulation simulation = simulate(graph, costs, kSteps);
  Timeline timeline = to_timeline(graph, simulation);
  // Where tasks are run a Receive is posted before its Send begins, and an absorbed recovery has an event of
  // its own.
  for (TimelineEvent& e : timeline.events)
    if (e.kind == name_of(TaskKind::kReceive)) e.begin = 0;
  for (size_t i = 0; i < simulation.runs.size(); ++i) {
    const Instance& instance = simulation.runs[i].instance;
    if (instance.absorbed == kNone) continue;
    TimelineEvent recovery = timeline.events[i];
    recovery.name = graph.describe(instance.absorbed);
    recovery.kind = name_of(TaskKind::kRecover);
    timeline.events[i].begin +=
        costs.seconds_in_step[static_cast<size_t>(instance.step)][static_cast<size_t>(instance.absorbed)];
    recovery.end = timeline.events[i].begin;
    timeline.events.push_back(recovery);
  }
  const CostTable replayed =
      replayed_costs(graph, measured_costs(graph, problem, timeline), timeline, 1, kSteps);
  const StepParts expected = mean_step_parts(graph, costs, kSteps),
                  got = mean_step_parts(graph, replayed, kSteps);
  EXPECT_NEAR(got.step_seconds, expected.step_seconds, 1e-9);
  EXPECT_NEAR(got.main_path + got.communication + got.update + got.prefetch + got.recovery, got.step_seconds,
              1e-9);
  EXPECT_GT(got.communication, 0);
  EXPECT_GT(got.recovery, 0);
  // One table for all steps would not do.
  CostTable equal = replayed;
  equal.seconds_in_step.clear();
  EXPECT_GT(std::abs(mean_step_parts(graph, equal, kSteps).step_seconds - expected.step_seconds), 0.01);
}

}  // namespace
}  // namespace trainer
