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

TEST(Dispatcher, ADistanceOfTwoLetsTheNextStepStartBeforeTheUpdate) {
  // Forward of step t reads what the update of step t - 2 wrote: two versions, read one step back.
  StepGraphBuilder b;
  const LaneId compute = b.lane(0, LaneKind::kCompute), host = b.lane(0, LaneKind::kHostCompute);
  Buffer weights;
  weights.bytes = 64;
  weights.versions = 2;
  weights.persistent = true;
  weights.rank = 0;
  const BufferId w = b.add_buffer(weights);
  Buffer gradient = weights;
  gradient.versions = 2;
  const BufferId g = b.add_buffer(gradient);
  Use old{w, Access::kRead, Role::kWeights};
  old.distance = 1;
  const TaskId forward =
      b.append(on_lane(TaskKind::kForward, compute, {old, {g, Access::kWrite, Role::kGradient}}));
  const TaskId update =
      b.append(on_lane(TaskKind::kUpdateShard, host,
                       {{g, Access::kRead, Role::kGradient}, {w, Access::kWrite, Role::kMaster}}));
  const StepGraph graph = b.build();

  Dispatcher d(graph, 4);
  const auto f0 = d.next(compute);
  ASSERT_EQ(f0, (Instance{forward, 0}));
  d.complete(*f0);
  const auto u0 = d.next(host);
  ASSERT_EQ(u0, (Instance{update, 0}));
  EXPECT_FALSE(d.next(compute));  // step 1 reads what update 0 writes
  d.complete(*u0);
  const auto f1 = d.next(compute);
  ASSERT_EQ(f1, (Instance{forward, 1}));
  d.complete(*f1);
  const auto u1 = d.next(host);
  ASSERT_EQ(u1, (Instance{update, 1}));
  d.complete(*u1);
  EXPECT_EQ(d.steps_completed(), 2);
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

TEST(Dispatcher, PoisonReachesEveryLane) {
  const StepGraph graph = build_step_graph(testing::small_problem(2, 1, 1, 1));
  Dispatcher d(graph, 1);
  d.poison(std::make_exception_ptr(std::runtime_error("lost")));
  for (size_t lane = 0; lane < graph.lanes.size(); ++lane)
    EXPECT_THROW(d.next(static_cast<LaneId>(lane)), std::runtime_error);
}

}  // namespace
}  // namespace trainer
