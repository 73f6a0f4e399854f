#include "runtime/stage_runtime.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "runtime/serial_interpreter.h"
#include "runtime/toy_binder.h"
#include "schedule/problems.h"

namespace trainer {
namespace {

using testing::buffer_of;
using testing::CallBinder;
using testing::task_on;
using testing::ToyBinder;
using State = std::map<std::string, std::vector<std::byte>>;
using namespace std::chrono_literals;

constexpr int kSteps = 3;

Problem delayed_problem(int stages) {
  Problem p = testing::small_problem(3, stages, 1, 3, true, 2);
  p.kept = choose_kept(p, ActivationPolicy::kCheckpoint, false, 0);
  return p;
}

std::vector<State> run_serially(const Problem& problem) {
  const StepGraph graph = build_step_graph(problem);
  auto world = make_in_process_group(problem.world_size());
  std::vector<std::unique_ptr<ToyBinder>> binders;
  for (int r = 0; r < problem.world_size(); ++r)
    binders.push_back(std::make_unique<ToyBinder>(graph, r, world[static_cast<size_t>(r)].get()));
  interpret_serially(graph, kSteps, 0,
                     [&](int rank) -> KernelBinder& { return *binders[static_cast<size_t>(rank)]; });
  std::vector<State> states;
  for (const auto& binder : binders) states.push_back(binder->state(graph));
  return states;
}

std::vector<State> run_threaded(Problem problem, uint64_t seed) {
  const auto delivery = seed % 2 ? Delivery::kRendezvous : Delivery::kEager;
  auto world = make_in_process_group(problem.world_size(), {delivery, {seed, 60us}});
  std::vector<State> states(world.size());
  std::vector<std::jthread> threads;
  for (size_t r = 0; r < world.size(); ++r)
    threads.emplace_back([&, r] {
      Problem mine = problem;
      mine.ranks = {static_cast<int>(r)};
      const StepGraph graph = build_step_graph(mine);
      ToyBinder binder(graph, static_cast<int>(r), world[r].get(), seed, 60us);
      StageRuntime runtime(graph, binder, {});
      runtime.run(1, kSteps, nullptr);
      states[r] = binder.state(graph);
    });
  threads.clear();
  return states;
}

TEST(StageRuntime, RandomDelaysNeitherBlockNorChangeABit) {
  for (int stages : {1, 3}) {
    const Problem problem = delayed_problem(stages);
    const std::vector<State> expected = run_serially(problem);
    for (const State& state : expected) ASSERT_FALSE(state.empty());
    for (uint64_t seed = 0; seed < 100; ++seed) {
      SCOPED_TRACE(seed);
      ASSERT_EQ(run_threaded(problem, seed), expected);
    }
  }
}

// Four lanes; what the collective waits for never comes.
struct FourLanes {
  FourLanes() {
    StepGraphBuilder b;
    const BufferId x = b.add_buffer(buffer_of("x", 64)), y = b.add_buffer(buffer_of("y", 64)),
                   z = b.add_buffer(buffer_of("z", 64));
    const auto lane = [&](LaneKind kind) { return b.lane(0, kind); };
    b.append(task_on(TaskKind::kReload, lane(LaneKind::kHostToDevice), {{x, Access::kWrite}}));
    b.append(
        task_on(TaskKind::kForward, lane(LaneKind::kCompute), {{x, Access::kRead}, {y, Access::kWrite}}));
    b.append(task_on(TaskKind::kUpdateShard, lane(LaneKind::kHostCompute),
                     {{y, Access::kRead}, {z, Access::kWrite}}));
    b.append(task_on(TaskKind::kGradSync, lane(LaneKind::kCollective), {{z, Access::kAccumulate}}));
    graph = b.build();
  }
  StepGraph graph;
};

TEST(StageRuntime, AFailureOnAnyLaneStopsAllAndIsRethrown) {
  const FourLanes program;
  for (TaskKind failing :
       {TaskKind::kReload, TaskKind::kForward, TaskKind::kUpdateShard, TaskKind::kGradSync}) {
    std::atomic<int> started{0};
    CallBinder binder([&](const Task& task, Instance instance) -> RequestPtr {
      ++started;
      if (task.kind == failing && instance.step == 1) run_error("{} is lost", name_of(failing));
      if (task.kind == TaskKind::kGradSync && instance.step == 1)
        return std::make_unique<testing::SlowRequest>(1 << 30);
      return nullptr;
    });
    StageRuntime runtime(program.graph, binder, {});
    try {
      runtime.run(5, 1000, nullptr);
      FAIL() << "it went on";
    } catch (const RunError& error) {
      EXPECT_EQ(std::string(error.what()), std::string(name_of(failing)) + " is lost");
    }
    const int after = started;
    EXPECT_LT(after, 4000);
    std::this_thread::sleep_for(2ms);
    EXPECT_EQ(started, after) << "a lane is still at work";
  }
}

// Forwards 0, 1 and 2 on the compute lane, each reading what the one before it wrote.
struct Chain {
  Chain() {
    StepGraphBuilder b;
    const LaneId compute = b.lane(0, LaneKind::kCompute);
    BufferId last = kNone;
    for (int layer = 0; layer < 3; ++layer) {
      const BufferId own = b.add_buffer(buffer_of("x", 64));
      std::vector<Use> uses = {{own, Access::kWrite, Role::kOutput}};
      if (layer > 0) uses.push_back({last, Access::kRead, Role::kInput});
      b.append(task_on(TaskKind::kForward, compute, uses, layer));
      last = own;
    }
    graph = b.build();
  }
  StepGraph graph;
};

// Lets forwards be started behind others, but for the one of `alone`, and writes down what it is asked.
class QueueBinder : public KernelBinder {
 public:
  explicit QueueBinder(int alone = -1) : alone_(alone) {}
  RequestPtr start(const StepGraph& graph, Instance instance) override {
    calls.push_back("start " + name(graph, instance));
    return nullptr;
  }
  bool start_behind(const StepGraph& graph, Instance next) override {
    if (graph.tasks[static_cast<size_t>(next.task)].at.layer_begin == alone_) return false;
    calls.push_back("behind " + name(graph, next));
    return true;
  }
  void finish(const StepGraph& graph, Instance instance) override {
    calls.push_back("finish " + name(graph, instance));
    if (calls.back() == failing) run_error("lost");
  }
  std::vector<std::string> calls;
  std::string failing;

 private:
  static std::string name(const StepGraph& graph, Instance instance) {
    return std::to_string(instance.step) + "." +
           std::to_string(graph.tasks[static_cast<size_t>(instance.task)].at.layer_begin);
  }
  int alone_;
};

TEST(StageRuntime, StartsATaskBehindTheOneUnderWay) {
  const Chain chain;
  QueueBinder all;
  StageRuntime(chain.graph, all, {}).run(1, 2, nullptr);
  EXPECT_THAT(all.calls, ::testing::ElementsAre("start 0.0", "behind 0.1", "finish 0.0", "behind 0.2",
                                                "finish 0.1", "finish 0.2", "start 1.0", "behind 1.1",
                                                "finish 1.0", "behind 1.2", "finish 1.1", "finish 1.2"));
  QueueBinder some(1);
  StageRuntime(chain.graph, some, {}).run(1, 1, nullptr);
  EXPECT_THAT(some.calls, ::testing::ElementsAre("start 0.0", "finish 0.0", "start 0.1", "behind 0.2",
                                                 "finish 0.1", "finish 0.2"));
}

// Told to stop while a task is in the queue, the lane waits for it.
TEST(StageRuntime, LeavesNothingInTheQueueWhenItStops) {
  const Chain chain;
  QueueBinder binder;
  binder.failing = "finish 0.0";
  StageRuntime runtime(chain.graph, binder, {});
  EXPECT_THROW(runtime.run(1, 1, nullptr), RunError);
  EXPECT_THAT(binder.calls, ::testing::ElementsAre("start 0.0", "behind 0.1", "finish 0.0", "finish 0.1"));
}

TEST(StageRuntime, AFailureInOnStepStopsAllLanes) {
  const FourLanes program;
  CallBinder binder([](const Task&, Instance) { return nullptr; });
  StageRuntime runtime(program.graph, binder, {});
  EXPECT_THROW(runtime.run(1, 1000,
                           [](int64_t step) {
                             if (step == 3) run_error("enough");
                           }),
               RunError);
  EXPECT_LT(binder.finished, 4000);
}

TEST(StageRuntime, AFailingRankTakesItsNeighbourAlong) {
  const Problem problem = delayed_problem(2);
  auto world = make_in_process_group(2);
  std::array<std::string, 2> errors;
  std::vector<std::jthread> threads;
  for (size_t r = 0; r < 2; ++r)
    threads.emplace_back([&, r] {
      Problem mine = problem;
      mine.ranks = {static_cast<int>(r)};
      const StepGraph graph = build_step_graph(mine);
      ToyBinder toy(graph, static_cast<int>(r), world[r].get());
      CallBinder binder([&](const Task& task, Instance instance) {
        if (r == 1 && task.kind == TaskKind::kBackward && instance.step == 1) run_error("no more");
        return toy.start(graph, instance);
      });
      StageRuntime runtime(graph, binder, {});
      try {
        runtime.run(1, 50, nullptr);
      } catch (const RunError& error) {
        errors[r] = error.what();
        world[r]->abort(error.what());
      }
    });
  threads.clear();
  EXPECT_EQ(errors[1], "no more");
  EXPECT_THAT(errors[0], ::testing::HasSubstr("rank 1"));
}

TEST(StageRuntime, StepsAreToldInOrderWhenTheirLastTaskIsDone) {
  const FourLanes program;
  std::array<std::atomic<int>, 6> done{};
  CallBinder binder([&](const Task&, Instance instance) -> RequestPtr {
    ++done[static_cast<size_t>(instance.step)];
    return nullptr;
  });
  StageRuntime runtime(program.graph, binder, {});
  std::vector<int64_t> steps;
  const auto caller = std::this_thread::get_id();
  runtime.run(41, 6, [&](int64_t step) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    EXPECT_EQ(done[static_cast<size_t>(step - 41)], 4);
    steps.push_back(step);
  });
  EXPECT_EQ(steps, (std::vector<int64_t>{41, 42, 43, 44, 45, 46}));
  EXPECT_EQ(binder.finished, 24);
}

// The last task of a step is not the compute lane's, which waits for that of the next: it is told at once.
TEST(StageRuntime, AStepIsToldWhileTheMainPathWaits) {
  StepGraphBuilder b;
  const BufferId w = b.add_buffer(buffer_of("w", 64, 2, true)), g = b.add_buffer(buffer_of("g", 64));
  b.append(task_on(TaskKind::kForward, b.lane(0, LaneKind::kCompute),
                   {{w, Access::kRead, Role::kWeights, 0, 1}, {g, Access::kWrite}}));
  b.append(task_on(TaskKind::kUpdateShard, b.lane(0, LaneKind::kHostCompute),
                   {{g, Access::kRead}, {w, Access::kWrite}}));
  b.append(task_on(TaskKind::kReload, b.lane(0, LaneKind::kHostToDevice), {{w, Access::kRead}}));
  const StepGraph graph = b.build();
  std::atomic<bool> told{false};
  CallBinder binder([&](const Task& task, Instance instance) -> RequestPtr {
    // The last update holds the last reload back until the step before was told.
    for (int i = 0; task.kind == TaskKind::kReload && instance.step == 1 && !told && i < 20000; ++i)
      std::this_thread::sleep_for(1ms);
    return nullptr;
  });
  StageRuntime runtime(graph, binder, {});
  runtime.run(1, 2, [&](int64_t step) { told = told || step == 1; });
  EXPECT_TRUE(told);
}

TEST(StageRuntime, ARankMayHoldNoLayers) {
  StepGraphBuilder b;
  const BufferId x = b.add_buffer(buffer_of("x", 64));
  b.append(task_on(TaskKind::kNormSync, b.lane(0, LaneKind::kCollective), {{x, Access::kWrite}}));
  const StepGraph graph = b.build();
  CallBinder binder([](const Task&, Instance) { return std::make_unique<testing::SlowRequest>(3); });
  StageRuntime runtime(graph, binder, {});
  std::vector<int64_t> steps;
  runtime.run(1, 3, [&](int64_t step) { steps.push_back(step); });
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(binder.finished, 3);
}

TEST(StageRuntime, WaitingIsBookedToWhatArrivedLast) {
  StepGraphBuilder b;
  const BufferId w = b.add_buffer(buffer_of("w", 64, 1, true)), g = b.add_buffer(buffer_of("g", 64));
  const LaneId compute = b.lane(0, LaneKind::kCompute);
  b.append(task_on(TaskKind::kForward, compute, {{w, Access::kRead}, {g, Access::kWrite}}));
  b.append(task_on(TaskKind::kUpdateShard, b.lane(0, LaneKind::kHostCompute),
                   {{g, Access::kRead}, {w, Access::kAccumulate}}));
  const StepGraph graph = b.build();
  CallBinder binder([](const Task& task, Instance) {
    std::this_thread::sleep_for(task.kind == TaskKind::kUpdateShard ? 30ms : 10ms);
    return nullptr;
  });
  const Clock clock;
  WaitLedger ledger;
  RuntimeOptions options;
  options.clock = &clock;
  options.ledger = &ledger;
  options.traced_steps = {2};
  StageRuntime runtime(graph, binder, options);
  runtime.run(1, 2, nullptr);
  const auto first = ledger.take(1), second = ledger.take(2);
  EXPECT_EQ(first.exposed.update, 0);
  EXPECT_GE(second.exposed.update, 0.025);
  EXPECT_GE(second.main_path, 0.010);
  for (const auto& account : {first, second})
    EXPECT_EQ(account.exposed.bubble + account.exposed.boundary + account.exposed.grad_sync +
                  account.exposed.prefetch + account.exposed.recovery,
              0);
  const Timeline timeline = runtime.take_timeline();
  ASSERT_EQ(timeline.events.size(), 2u);
  EXPECT_EQ(timeline.events[0].kind, "Forward");
  EXPECT_EQ(timeline.events[0].step, 2);
  EXPECT_EQ(timeline.events[1].lane, "host_compute");
  EXPECT_GE(timeline.events[1].end - timeline.events[1].begin, 0.030);
  EXPECT_GE(timeline.events[1].begin, timeline.events[0].end);
  EXPECT_TRUE(runtime.take_timeline().events.empty());
}

}  // namespace
}  // namespace trainer
