#include "schedule/dispatcher.h"

#include <gtest/gtest.h>

#include "schedule/problems.h"

namespace trainer {
namespace {

Task on_lane(TaskKind kind, LaneId lane, std::vector<Use> uses, int priority = 0) {
  Task t;
  t.kind = kind;
  t.lane = lane;
  t.at.rank = 0;
  t.uses = std::move(uses);
  t.priority = priority;
  return t;
}

// Forward of step t reads the weights `distance` steps back, that is, what the update of step t - distance
// wrote; updates run on a lane of their own.
struct DelayedUpdate {
  explicit DelayedUpdate(int distance) {
    StepGraphBuilder b;
    compute = b.lane(0, LaneKind::kCompute);
    host = b.lane(0, LaneKind::kHostCompute);
    Buffer buffer;
    buffer.bytes = 64;
    buffer.versions = 2;
    buffer.rank = 0;
    const BufferId g = b.add_buffer(buffer);
    buffer.persistent = true;
    const BufferId w = b.add_buffer(buffer);
    const Use old{w, Access::kRead, Role::kWeights, 0, static_cast<int16_t>(distance)};
    const Use last{w, Access::kRead, Role::kMaster, 0, 1};
    forward = b.append(on_lane(TaskKind::kForward, compute, {old, {g, Access::kWrite, Role::kGradient}}));
    update =
        b.append(on_lane(TaskKind::kUpdateShard, host,
                         {{g, Access::kRead, Role::kGradient}, last, {w, Access::kWrite, Role::kMaster}}));
    graph = b.build();
  }
  LaneId compute, host;
  TaskId forward, update;
  StepGraph graph;
};

TEST(Dispatcher, ADistanceOfOneWaitsForTheUpdateOfTheStepBefore) {
  const DelayedUpdate p(1);
  Dispatcher d(p.graph, 4);
  for (int step = 0; step < 3; ++step) {
    const auto f = d.next(p.compute);
    ASSERT_EQ(f, (Instance{p.forward, step}));
    d.complete(*f);
    const auto u = d.next(p.host);
    ASSERT_EQ(u, (Instance{p.update, step}));
    EXPECT_FALSE(d.next(p.compute));  // reads what this update writes
    d.complete(*u);
  }
}

TEST(Dispatcher, ADistanceOfTwoLetsTheNextStepStartBeforeTheUpdate) {
  const DelayedUpdate p(2);
  Dispatcher d(p.graph, 4);
  for (int step = 0; step < 2; ++step) {  // nothing before the first step to wait for
    const auto f = d.next(p.compute);
    ASSERT_EQ(f, (Instance{p.forward, step}));
    d.complete(*f);
  }
  const auto u0 = d.next(p.host);
  ASSERT_EQ(u0, (Instance{p.update, 0}));
  EXPECT_FALSE(d.next(p.compute));  // step 2 reads what update 0 writes
  d.complete(*u0);
  const auto f2 = d.next(p.compute);
  ASSERT_EQ(f2, (Instance{p.forward, 2}));
  const auto u1 = d.next(p.host);
  EXPECT_EQ(u1, (Instance{p.update, 1}));  // while forward 2 runs
}

// Forwards 0 and 1 read what each before them wrote, forward 2 also what a lane of its own brings.
TEST(Dispatcher, FollowsIsWhatTheLaneWillGet) {
  StepGraphBuilder b;
  const LaneId compute = b.lane(0, LaneKind::kCompute), receive = b.lane(0, LaneKind::kReceiveForward);
  Buffer buffer;
  buffer.bytes = 64;
  buffer.rank = 0;
  const BufferId x = b.add_buffer(buffer), y = b.add_buffer(buffer), z = b.add_buffer(buffer);
  const TaskId first = b.append(on_lane(TaskKind::kForward, compute, {{x, Access::kWrite, Role::kOutput}}));
  const TaskId second = b.append(on_lane(
      TaskKind::kForward, compute, {{x, Access::kRead, Role::kInput}, {y, Access::kWrite, Role::kOutput}}));
  const TaskId arrival = b.append(on_lane(TaskKind::kReceive, receive, {{z, Access::kWrite, Role::kInput}}));
  b.append(on_lane(TaskKind::kForward, compute,
                   {{y, Access::kRead, Role::kInput}, {z, Access::kRead, Role::kInput}}));
  const StepGraph graph = b.build();
  for (const bool arrives : {false, true}) {
    Dispatcher d(graph, 2);
    ASSERT_EQ(d.next(compute), (Instance{first, 0}));
    EXPECT_EQ(d.follows({first, 0}), (Instance{second, 0}));
    d.complete({first, 0});
    ASSERT_EQ(d.next(compute), (Instance{second, 0}));
    EXPECT_FALSE(d.follows({second, 0})) << "the third waits for what is on its way";
    if (!arrives) continue;
    const auto received = d.next(receive);
    ASSERT_EQ(received, (Instance{arrival, 0}));
    d.complete(*received);
    const auto third = d.follows({second, 0});
    ASSERT_TRUE(third);
    d.complete({second, 0});
    EXPECT_EQ(d.next(compute), third);
    EXPECT_FALSE(d.follows(*third)) << "what comes next is of another step";
  }
}

TEST(StepGraphBuilder, RefusesToReadAVersionThatIsGone) {
  const auto build = [](int versions, int distance, bool read_first) {
    StepGraphBuilder b;
    const LaneId lane = b.lane(0, LaneKind::kCompute);
    Buffer buffer;
    buffer.bytes = 64;
    buffer.rank = 0;
    buffer.persistent = true;
    buffer.versions = static_cast<int16_t>(versions);
    const BufferId x = b.add_buffer(buffer);
    const Task read = on_lane(TaskKind::kForward, lane,
                              {{x, Access::kRead, Role::kInput, 0, static_cast<int16_t>(distance)}});
    const Task write = on_lane(TaskKind::kUpdateShard, lane, {{x, Access::kWrite, Role::kOutput}});
    b.append(read_first ? read : write);
    b.append(read_first ? write : read);
    b.build();
  };
  EXPECT_NO_THROW(build(2, 1, false));
  EXPECT_NO_THROW(build(2, 2, true));
  EXPECT_ANY_THROW(build(2, 2, false));  // this step's write has taken its place
  EXPECT_ANY_THROW(build(2, 3, true));
}

TEST(Dispatcher, APriorityLaneRunsTheMainPathFirstThenByPriority) {
  StepGraphBuilder b;
  Lane lane;
  lane.order = LaneOrder::kPriority;
  lane.rank = 0;
  const LaneId id = b.add_lane(lane);
  const LaneId other = b.lane(0, LaneKind::kCollective);
  Buffer buffer;
  buffer.bytes = 64;
  buffer.rank = 0;
  const BufferId x = b.add_buffer(buffer);
  const TaskId late = b.append(on_lane(TaskKind::kGradSync, other, {{x, Access::kWrite, Role::kOutput}}));
  const TaskId low = b.append(on_lane(TaskKind::kUpdateShard, id, {}, 1));
  const TaskId high = b.append(on_lane(TaskKind::kUpdateShard, id, {}, 2));
  const TaskId main = b.append(on_lane(TaskKind::kForward, id, {{x, Access::kRead, Role::kInput}}));
  const StepGraph graph = b.build();
  Dispatcher d(graph, 1);
  const auto first = d.next(id);
  EXPECT_EQ(first->task, high);  // the main path is not ready yet
  const auto sync = d.next(other);
  EXPECT_EQ(sync->task, late);
  d.complete(*sync);
  d.complete(*first);
  const auto second = d.next(id);
  EXPECT_EQ(second->task, main);
  EXPECT_EQ(d.released_by(*second), late);
  d.complete(*second);
  EXPECT_EQ(d.next(id)->task, low);
}

// A recovery that may be absorbed, its backward, and a receive both or only the backward wait for.
struct Absorbable {
  Absorbable() {
    StepGraphBuilder b;
    Lane lane;
    lane.order = LaneOrder::kPriority;
    lane.rank = 0;
    compute = b.add_lane(lane);
    boundary = b.lane(0, LaneKind::kReceiveBackward);
    Buffer buffer;
    buffer.bytes = 64;
    buffer.rank = 0;
    const BufferId saved = b.add_buffer(buffer), gradient = b.add_buffer(buffer);
    receive = b.append(on_lane(TaskKind::kReceive, boundary, {{gradient, Access::kWrite, Role::kOutput}}));
    forward = b.append(on_lane(TaskKind::kForward, compute, {}));
    recover = b.append(on_lane(TaskKind::kRecover, compute, {{saved, Access::kWrite, Role::kSaved}}));
    backward =
        b.append(on_lane(TaskKind::kBackward, compute,
                         {{saved, Access::kRead, Role::kSaved}, {gradient, Access::kRead, Role::kInput}}));
    b.task(recover).absorber = backward;
    graph = b.build();
  }
  LaneId compute, boundary;
  TaskId receive, forward, recover, backward;
  StepGraph graph;
};

TEST(Dispatcher, ABackwardDoesARecoveryThatFoundNoGap) {
  const Absorbable p;
  Dispatcher d(p.graph, 2);
  for (int step = 0; step < 2; ++step) {
    const auto received = d.next(p.boundary);
    const auto forward = d.next(p.compute);
    ASSERT_EQ(forward->task, p.forward);  // the main path comes before a recovery
    d.complete(*received);
    d.complete(*forward);
    const auto both = d.next(p.compute);
    ASSERT_EQ(both, (Instance{p.backward, step, p.recover}));
    EXPECT_EQ(d.released_by(*both), p.receive);
    d.complete(*both);
  }
  EXPECT_TRUE(d.finished());
  EXPECT_TRUE(d.exhausted(p.compute));
}

TEST(Dispatcher, ARecoveryRunsInAGapAndIsNotDoneTwice) {
  const Absorbable p;
  Dispatcher d(p.graph, 1);
  const auto received = d.next(p.boundary);
  d.complete(*d.next(p.compute));
  const auto recover = d.next(p.compute);  // the gradient is not there yet
  ASSERT_EQ(recover, (Instance{p.recover, 0, kNone}));
  d.complete(*received);
  d.complete(*recover);
  const auto backward = d.next(p.compute);
  ASSERT_EQ(backward, (Instance{p.backward, 0, kNone}));
  d.complete(*backward);
  EXPECT_TRUE(d.finished());
}

// The next step's forward of a layer waits for that layer's update, and what it could recover meanwhile for
// nothing but its own forward.
TEST(Dispatcher, WhatIsLeftOfAStepComesBeforeTheNextOnes) {
  StepGraphBuilder b;
  Lane lane;
  lane.order = LaneOrder::kPriority;
  lane.rank = 0;
  const LaneId id = b.add_lane(lane);
  const TaskId first = b.append(on_lane(TaskKind::kForward, id, {}));
  const TaskId second = b.append(on_lane(TaskKind::kForward, id, {}));
  const TaskId recover = b.append(on_lane(TaskKind::kRecover, id, {}, 1));
  const TaskId update = b.append(on_lane(TaskKind::kUpdateShard, id, {}));
  b.task(recover).after.push_back({first, 0});
  b.task(update).after.push_back({second, 0});
  b.task(second).after.push_back({update, 1});
  const StepGraph graph = b.build();
  Dispatcher d(graph, 2);
  std::vector<TaskId> order;
  while (const auto i = d.next(id)) {
    order.push_back(i->task);
    d.complete(*i);
  }
  EXPECT_EQ(order, (std::vector<TaskId>{first, second, first, recover, update, second, recover, update}));
}

}  // namespace
}  // namespace trainer
