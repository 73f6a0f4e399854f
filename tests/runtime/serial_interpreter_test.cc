#include "runtime/serial_interpreter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "runtime/toy_binder.h"
#include "schedule/problems.h"

namespace trainer {
namespace {

using testing::CallBinder;
using testing::task_on;
using testing::ToyBinder;

TEST(SerialInterpreter, EveryOrderLeavesTheSameBytes) {
  Problem problem = testing::small_problem(2, 2, 2, 2);
  problem.kept = choose_kept(problem, ActivationPolicy::kCheckpoint, false, 0);
  const StepGraph graph = build_step_graph(problem);
  std::set<std::vector<int>> orders;
  std::vector<std::map<std::string, std::vector<std::byte>>> expected;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    auto world = make_in_process_group(problem.world_size());
    std::vector<std::unique_ptr<ToyBinder>> toys;
    for (int r = 0; r < problem.world_size(); ++r)
      toys.push_back(std::make_unique<ToyBinder>(graph, r, world[static_cast<size_t>(r)].get(), seed));
    std::vector<int> order;
    CallBinder binder([&](const Task& task, Instance instance) {
      order.push_back(instance.task);
      return toys[static_cast<size_t>(task.at.rank)]->start(graph, instance);
    });
    interpret_serially(graph, 3, seed, [&](int) -> KernelBinder& { return binder; });
    orders.insert(order);
    std::vector<std::map<std::string, std::vector<std::byte>>> states;
    for (const auto& toy : toys) states.push_back(toy->state(graph));
    if (seed == 0) expected = states;
    EXPECT_EQ(states, expected) << seed;
  }
  EXPECT_GT(orders.size(), 6u) << "the orders hardly differ: this shows nothing";
}

TEST(SerialInterpreter, TellsOfADeadlock) {
  StepGraphBuilder b;
  const LaneId lane = b.lane(0, LaneKind::kCompute);
  const TaskId first = b.append(task_on(TaskKind::kForward, lane, {}, 7));
  const TaskId second = b.append(task_on(TaskKind::kBackward, lane, {}, 7));
  b.task(first).after.push_back({second, 0});
  const StepGraph graph = b.build();
  CallBinder binder([](const Task&, Instance) { return nullptr; });
  try {
    interpret_serially(graph, 1, 0, [&](int) -> KernelBinder& { return binder; });
    FAIL() << "it ended";
  } catch (const RunError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr(
                                  "Forward layer 7 (rank 0) of step 0 waits for Backward layer 7 (rank 0)"));
  }
}

TEST(SerialInterpreter, TellsOfATransferThatNeverEnds) {
  StepGraphBuilder b;
  const BufferId x = b.add_buffer(testing::buffer_of("x", 64));
  b.append(task_on(TaskKind::kReceive, b.lane(0, LaneKind::kReceiveForward), {{x, Access::kWrite}}));
  b.append(task_on(TaskKind::kForward, b.lane(0, LaneKind::kCompute), {{x, Access::kRead}}, 3));
  const StepGraph graph = b.build();
  CallBinder binder([](const Task& task, Instance) -> RequestPtr {
    if (task.kind == TaskKind::kReceive) return std::make_unique<testing::SlowRequest>(1 << 30);
    return nullptr;
  });
  try {
    interpret_serially(graph, 1, 0, [&](int) -> KernelBinder& { return binder; });
    FAIL() << "it ended";
  } catch (const RunError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("Forward layer 3 (rank 0) of step 0 waits for Receive"));
  }
}

}  // namespace
}  // namespace trainer
