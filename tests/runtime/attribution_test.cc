// Waiting is explained back to its causes: programs of a few tasks, run through the dispatcher with times
// made up here.
#include "runtime/attribution.h"

#include <gtest/gtest.h>

#include "runtime/toy_binder.h"

namespace trainer {
namespace {

using testing::task_on;

// Runs tasks when the test says so.
class Replay {
 public:
  Replay(const StepGraph& graph, LaneId main, int steps, double now)
      : graph_(graph), dispatcher_(graph, steps), main_(main) {
    attribution_.emplace(graph, dispatcher_, ledger, main, 1, now);
  }

  void run(TaskId task, int step, double begin, double end) {
    const auto got = dispatcher_.next(graph_.tasks[static_cast<size_t>(task)].lane);
    ASSERT_TRUE(got && got->task == task && got->step == step)
        << graph_.describe(task) << " of step " << step << " cannot start at " << begin;
    if (graph_.tasks[static_cast<size_t>(task)].lane == main_ &&
        is_main_path(graph_.tasks[static_cast<size_t>(task)].kind))
      attribution_->main_path_starts(*got, begin);
    attribution_->ran(*got, begin, end);
    dispatcher_.complete(*got);
  }
  void ends(double now) {
    ASSERT_TRUE(dispatcher_.finished());
    attribution_->run_ends(now);
  }

  WaitLedger ledger;

 private:
  const StepGraph& graph_;
  Dispatcher dispatcher_;
  LaneId main_;
  std::optional<WaitAttribution> attribution_;
};

double sum(const ExposedTime& e) {
  return e.bubble + e.boundary + e.grad_sync + e.update + e.prefetch + e.recovery;
}

// Forward, Backward, then the state tasks of one layer: the sum of the gradient, its norm, the exchange, the
// update, the gather of the weights, which the next Forward waits for.
struct StateChain {
  StateChain() {
    StepGraphBuilder b;
    compute = b.lane(0, LaneKind::kCompute);
    const LaneId collective = b.lane(0, LaneKind::kCollective);
    const auto add = [&](TaskKind kind, LaneId lane, TaskId after) {
      Task t = task_on(kind, lane);
      if (after != kNone) t.after.push_back({after, 0});
      return b.append(std::move(t));
    };
    forward = add(TaskKind::kForward, compute, kNone);
    backward = add(TaskKind::kBackward, compute, forward);
    sync = add(TaskKind::kGradSync, collective, backward);
    square = add(TaskKind::kGradNorm, compute, sync);
    exchange = add(TaskKind::kNormSync, collective, square);
    update = add(TaskKind::kUpdateShard, compute, exchange);
    gather = add(TaskKind::kPrefetchWeights, collective, update);
    b.task(forward).after.push_back({gather, 1});
    b.lane_of(b.task(forward)).order = LaneOrder::kPriority;
    graph = b.build();
  }

  // The step that begins at `at`: 3 seconds of work, then 1 + 0.5 + 2 + 0.25 + 4 of state tasks with 0.125
  // between each two.
  void run(Replay& replay, int step, double at) const {
    replay.run(forward, step, at, at + 1);
    replay.run(backward, step, at + 1, at + 3);
    replay.run(sync, step, at + 3, at + 4);
    replay.run(square, step, at + 4.125, at + 4.625);
    replay.run(exchange, step, at + 4.75, at + 6.75);
    replay.run(update, step, at + 6.875, at + 7.125);
    replay.run(gather, step, at + 7.25, at + 11.25);
  }

  LaneId compute;
  TaskId forward, backward, sync, square, exchange, update, gather;
  StepGraph graph;
};

TEST(WaitAttribution, TheChainOfStateTasksIsTakenApart) {
  const StateChain p;
  Replay replay(p.graph, p.compute, 2, 0);
  replay.ledger.all_main_paths_ended(1, 0);
  p.run(replay, 0, 0);
  p.run(replay, 1, 11.25);
  replay.ends(22.5);
  EXPECT_EQ(replay.ledger.take(1).end, 3);
  const auto second = replay.ledger.take(2);
  // From 3 to 11.25, and, as nothing follows, from 14.25 to 22.5 again. What lies between two tasks goes to
  // the later one, but for the compute lane's, which could have run something.
  EXPECT_DOUBLE_EQ(second.exposed.grad_sync, 2 * (1 + 2.125));
  EXPECT_DOUBLE_EQ(second.exposed.update, 2 * (0.5 + 0.25));
  EXPECT_DOUBLE_EQ(second.exposed.prefetch, 2 * 4.125);
  EXPECT_DOUBLE_EQ(second.exposed.boundary + second.exposed.recovery + second.exposed.bubble, 0);
  EXPECT_EQ(second.end, 22.5);
}

TEST(WaitAttribution, UntilTheLastRanksMainPathEndedItIsTheBubble) {
  const StateChain p;
  Replay replay(p.graph, p.compute, 2, 0);
  // Another rank's backward ended at 5.75: what this one waited for until then is not the sum's fault.
  replay.ledger.all_main_paths_ended(1, 5.75);
  p.run(replay, 0, 0);
  replay.run(p.forward, 1, 11.25, 12);
  const ExposedTime e = replay.ledger.take(2).exposed;
  EXPECT_DOUBLE_EQ(e.bubble, 2.75);
  EXPECT_DOUBLE_EQ(e.grad_sync, 1);
  EXPECT_DOUBLE_EQ(e.update, 0.25);
  EXPECT_DOUBLE_EQ(e.prefetch, 4.125);
}

TEST(WaitAttribution, NothingIsBookedWhileTheMainPathWorks) {
  const StateChain p;
  Replay replay(p.graph, p.compute, 1, 0);
  replay.run(p.forward, 0, 0, 1);
  replay.run(p.backward, 0, 1, 3);
  EXPECT_EQ(sum(replay.ledger.take(1).exposed), 0);
}

// Two lanes that take turns: a message, the Forward that needs it, a background task in between.
TEST(WaitAttribution, BackgroundWorkOfTheLaneCountsOnceTheMainPathCouldGoOn) {
  StepGraphBuilder b;
  const LaneId compute = b.lane(0, LaneKind::kCompute), receive = b.lane(0, LaneKind::kReceiveForward);
  const TaskId message = b.append(task_on(TaskKind::kReceive, receive));
  Task f = task_on(TaskKind::kForward, compute);
  f.at.micro_batch = 0;
  f.after.push_back({message, 0});
  const TaskId forward = b.append(std::move(f));
  b.task(message).at.micro_batch = 0;
  const TaskId recover = b.append(task_on(TaskKind::kRecover, compute));
  b.lane_of(b.task(forward)).order = LaneOrder::kPriority;
  const StepGraph graph = b.build();
  Replay replay(graph, compute, 1, 0);
  replay.run(recover, 0, 1, 5);  // started while the message was still under way
  replay.ledger.arrived(true, 0, {2, {}});
  replay.run(message, 0, 0, 3);
  replay.run(forward, 0, 5, 6);
  const auto account = replay.ledger.take(1);
  // The sender had it at 2: bubble; it came at 3: transfer; until 5 the recovery held the lane.
  EXPECT_DOUBLE_EQ(account.exposed.bubble, 2);
  EXPECT_DOUBLE_EQ(account.exposed.boundary, 1);
  EXPECT_DOUBLE_EQ(account.exposed.recovery, 2);
  EXPECT_DOUBLE_EQ(sum(account.exposed), 5);
  EXPECT_EQ(account.received_forward, std::vector<double>{1});
}

// The output of a Forward lies where that of the one before is still being sent from.
TEST(WaitAttribution, ABufferThatIsStillBeingSentIsTheTransfersFault) {
  StepGraphBuilder b;
  const LaneId compute = b.lane(0, LaneKind::kCompute);
  const TaskId first = b.append(task_on(TaskKind::kForward, compute));
  Task s = task_on(TaskKind::kSend, b.lane(0, LaneKind::kSendForward)),
       f = task_on(TaskKind::kForward, compute);
  s.after.push_back({first, 0});
  const TaskId send = b.append(std::move(s));
  f.after.push_back({send, 0});
  const TaskId second = b.append(std::move(f));
  const StepGraph graph = b.build();
  Replay replay(graph, compute, 1, 0);
  replay.run(first, 0, 0, 1);
  replay.run(send, 0, 1, 4);
  replay.run(second, 0, 4, 5);
  EXPECT_DOUBLE_EQ(replay.ledger.take(1).exposed.boundary, 3);
}

// A sum that was ready long ago but whose lane had others before it.
TEST(WaitAttribution, ASumBehindAnotherOnItsLaneIsTheSumsFault) {
  StepGraphBuilder b;
  const LaneId compute = b.lane(0, LaneKind::kCompute), collective = b.lane(0, LaneKind::kCollective);
  const TaskId backward = b.append(task_on(TaskKind::kBackward, compute));
  Task first = task_on(TaskKind::kGradSync, collective), second = task_on(TaskKind::kGradSync, collective);
  first.after.push_back({backward, 0});
  second.after.push_back({backward, 0});
  const TaskId first_id = b.append(std::move(first)), second_id = b.append(std::move(second));
  Task next = task_on(TaskKind::kForward, compute);
  next.after.push_back({second_id, 0});
  const TaskId forward = b.append(std::move(next));
  const StepGraph graph = b.build();
  Replay replay(graph, compute, 1, 0);
  replay.run(backward, 0, 0, 1);
  replay.run(first_id, 0, 1, 4);
  replay.run(second_id, 0, 4, 6);
  replay.run(forward, 0, 6, 7);
  EXPECT_DOUBLE_EQ(replay.ledger.take(1).exposed.grad_sync, 5);
}

}  // namespace
}  // namespace trainer
