#include "sim/simulator.h"

#include <gtest/gtest.h>

#include <ctime>

#include "base/error.h"
#include "graphs.h"
#include "schedule/passes.h"
#include "schedule/problems.h"

namespace trainer {
namespace {

using testing::bare_task;

TEST(Simulator, ALaneDoesOneThingAtATimeAndConsumersWait) {
  StepGraphBuilder builder;
  const LaneId a = builder.lane(0, LaneKind::kCompute), b = builder.lane(0, LaneKind::kCollective);
  Buffer buffer;
  buffer.name = "x";
  buffer.bytes = 64;
  const BufferId x = builder.add_buffer(buffer);
  const TaskId first = builder.append(bare_task(TaskKind::kForward, a, {{x, Access::kWrite, Role::kOutput}}));
  const TaskId second = builder.append(bare_task(TaskKind::kGradSync, b, {{x, Access::kRead, Role::kInput}}));
  const TaskId third = builder.append(bare_task(TaskKind::kForward, a));
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

TEST(Simulator, TasksThatMeetBeginAndEndTogether) {
  StepGraphBuilder builder;
  std::vector<TaskId> work, sync;
  for (int rank = 0; rank < 3; ++rank) {
    work.push_back(builder.append(bare_task(TaskKind::kForward, builder.lane(rank, LaneKind::kCompute))));
    Task t = bare_task(TaskKind::kGradSync, builder.lane(rank, LaneKind::kCollective));
    t.after = {{work.back(), 0}};
    sync.push_back(builder.append(std::move(t)));
  }
  const StepGraph graph = builder.build();
  CostTable costs;
  costs.seconds = {1, 2, 4, 3, 2, 1};  // work, sync of each rank in turn
  costs.meeting = {kNone, 0, kNone, 0, kNone, 0};
  const Simulation simulation = simulate(graph, costs, 2);
  for (const TaskRun& run : simulation.runs)
    if (graph.tasks[static_cast<size_t>(run.instance.task)].kind == TaskKind::kGradSync) {
      EXPECT_DOUBLE_EQ(run.begin, run.instance.step == 0 ? 4 : 8);
      EXPECT_DOUBLE_EQ(run.end, run.instance.step == 0 ? 7 : 11);
    }
}

TEST(Simulator, ASendWaitsUntilItsReceiveIsPosted) {
  StepGraphBuilder builder;
  const TaskId send = builder.append(bare_task(TaskKind::kSend, builder.lane(0, LaneKind::kSendForward)));
  const TaskId other = builder.append(bare_task(TaskKind::kForward, builder.lane(1, LaneKind::kCompute)));
  Task receive = bare_task(TaskKind::kReceive, builder.lane(1, LaneKind::kReceiveForward));
  receive.at.rank = 1;
  receive.after = {{send, 0}, {other, 0}};
  builder.append(std::move(receive));
  const StepGraph graph = builder.build();
  const Simulation simulation = simulate(graph, {{2, 5, 0}, {}, {}, {}, {}, {}});
  EXPECT_EQ(simulation.runs[1].instance.task, send);
  EXPECT_DOUBLE_EQ(simulation.runs[1].begin, 5);
  EXPECT_DOUBLE_EQ(simulation.end, 7);
}

TEST(Simulator, AnAbsorbedTaskTakesItsTimeToo) {
  StepGraphBuilder builder;
  const LaneId lane = builder.lane(0, LaneKind::kCompute),
               other = builder.lane(0, LaneKind::kReceiveBackward);
  const TaskId gradient = builder.append(bare_task(TaskKind::kReceive, other));
  const TaskId recover = builder.append(bare_task(TaskKind::kRecover, lane));
  Task t = bare_task(TaskKind::kBackward, lane);
  t.after = {{recover, 0}};
  const TaskId backward = builder.append(std::move(t));
  builder.task(recover).absorber = backward;
  builder.task(recover).after = {{gradient, 0}};
  builder.lane_of(builder.task(recover)).order = LaneOrder::kPriority;
  const StepGraph graph = builder.build();
  const Simulation simulation = simulate(graph, {{1, 2, 4}, {}, {}, {}, {}, {}});
  ASSERT_EQ(simulation.runs.size(), 2u);
  EXPECT_EQ(simulation.runs[1].instance, (Instance{backward, 0, recover}));
  EXPECT_DOUBLE_EQ(simulation.runs[1].begin, 1);
  EXPECT_DOUBLE_EQ(simulation.runs[1].end, 1 + 2 + 4);
}

TEST(Simulator, APipelineTakesWhatTheFormulaSays) {
  const int blocks = 8, stages = 4, micro_batches = 12;
  const Problem problem = testing::small_problem(blocks, stages, 1, micro_batches, false);
  const StepGraph graph = build_step_graph(problem);
  CostTable costs;
  for (const Task& task : graph.tasks) {
    const bool block = task.at.layer_begin > 0 && task.at.layer_begin <= blocks;
    costs.seconds.push_back(!block                             ? 0
                            : task.kind == TaskKind::kForward  ? 1
                            : task.kind == TaskKind::kBackward ? 2
                                                               : 0);
  }
  // (M + P - 1) micro-batches of two layers each.
  EXPECT_DOUBLE_EQ(simulate(graph, costs).end, (micro_batches + stages - 1) * 2 * 3.0);
  EXPECT_DOUBLE_EQ(simulate(graph, costs, 3).end, 3 * (micro_batches + stages - 1) * 2 * 3.0);
}

TEST(Simulator, AProgramThatCannotGoOnIsNamed) {
  StepGraphBuilder builder;
  const TaskId a = builder.append(bare_task(TaskKind::kForward, builder.lane(0, LaneKind::kCompute)));
  const TaskId b = builder.append(bare_task(TaskKind::kBackward, builder.lane(1, LaneKind::kCompute)));
  builder.task(a).after = {{b, 0}};
  builder.task(b).after = {{a, 0}};
  EXPECT_THROW(simulate(builder.build(), {{1, 1}, {}, {}, {}, {}, {}}), RunError);
}

#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(Simulator, IsFast) {
  const Problem problem = testing::small_problem(30, 8, 1, 128, false);
  const StepGraph graph = build_step_graph(problem);
  const CostTable costs{std::vector<double>(graph.tasks.size(), 1), {}, {}, {}, {}, {}};
  const int steps = 8;
  const std::clock_t begin = std::clock();  // of this process alone
  const Simulation simulation = simulate(graph, costs, steps);
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  EXPECT_GT(static_cast<double>(simulation.runs.size()) / seconds, 200e3);
}
#endif

}  // namespace
}  // namespace trainer
