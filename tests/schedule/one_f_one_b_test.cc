#include "schedule/one_f_one_b.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "schedule/check.h"
#include "schedule/memory.h"
#include "schedule/problems.h"

namespace trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::small_problem;

TEST(StageLayers, RemainderGoesToTheEarlierStagesAndNoLayerIsLost) {
  EXPECT_THAT(even_stage_layers(30, 4), ElementsAre(8, 8, 7, 7));
  EXPECT_THAT(first_layers({8, 8, 7, 7}), ElementsAre(0, 9, 17, 24, 32));  // the head is layer 31
  EXPECT_THAT(first_layers(even_stage_layers(7, 2)), ElementsAre(0, 5, 9));
  EXPECT_THAT(first_layers(even_stage_layers(10, 3)), ElementsAre(0, 5, 8, 12));
  EXPECT_THAT(first_layers({5}), ElementsAre(0, 7));
  EXPECT_THAT(first_layers({1, 4}), ElementsAre(0, 2, 7));
}

TEST(StageLayers, RefusesEmptyStages) {
  EXPECT_THROW(even_stage_layers(2, 4), InputError);
  EXPECT_THROW(first_layers({5, 0}), InputError);
}

// Warm-up and steady forwards of every stage, few micro-batches included.
TEST(OneFOneB, WarmUpIsCappedByTheMicroBatches) {
  const auto warm_up = [](int stages, int m) {
    std::vector<int> counts;
    for (int s = 0; s < stages; ++s) counts.push_back(warm_up_micro_batches(stages, s, m));
    return counts;
  };
  EXPECT_THAT(warm_up(4, 1), ElementsAre(1, 1, 1, 0));
  EXPECT_THAT(warm_up(4, 2), ElementsAre(2, 2, 1, 0));
  EXPECT_THAT(warm_up(4, 3), ElementsAre(3, 2, 1, 0));
  EXPECT_THAT(warm_up(4, 8), ElementsAre(3, 2, 1, 0));
}

TEST(OneFOneB, EveryStageRunsEveryMicroBatchForwardThenBackwardInOrder) {
  for (int stages = 1; stages <= 5; ++stages)
    for (int m = 1; m <= 9; ++m)
      for (int s = 0; s < stages; ++s) {
        int forwards = 0, backwards = 0, in_flight = 0, most = 0;
        for (const Slot& slot : one_f_one_b_slots(stages, s, m)) {
          EXPECT_EQ(slot.micro_batch, slot.forward ? forwards++ : backwards++);
          in_flight += slot.forward ? 1 : -1;
          most = std::max(most, in_flight);
        }
        EXPECT_EQ(forwards, m);
        EXPECT_EQ(backwards, m);
        EXPECT_EQ(most, std::min(m, stages - s));
      }
}

TEST(BuildStepGraph, IsValidForEveryShape) {
  for (int stages : {1, 2, 3, 4})
    for (int replicas : {1, 2})
      for (int m : {1, 2, 3, 8})
        for (bool tied : {false, true})
          for (int64_t element : {2, 4})
            for (auto policy : {ActivationPolicy::kFullSave, ActivationPolicy::kCheckpoint}) {
              Problem p = small_problem(5, stages, replicas, m, tied, element);
              p.kept = choose_kept(p, policy, false, 0);
              const StepGraph graph = build_step_graph(p);
              for (const auto& d : check(graph)) ADD_FAILURE() << d.message;
            }
}

TEST(BuildStepGraph, TheLocalPartOfARankIsWhatTheWholeGraphHolds) {
  Problem p = small_problem(5, 3, 2, 4);
  const StepGraph whole = build_step_graph(p);
  for (int rank = 0; rank < p.world_size(); ++rank) {
    p.ranks = {rank};
    const StepGraph part = build_step_graph(p);
    EXPECT_EQ(arena_bytes(part, rank), arena_bytes(whole, rank));
    std::vector<std::string> mine, all;
    for (TaskId id : part.sequence) mine.push_back(part.describe(id));
    for (TaskId id : whole.sequence)
      if (whole.tasks[static_cast<size_t>(id)].at.rank == rank) all.push_back(whole.describe(id));
    EXPECT_EQ(mine, all);
    for (int peer = 0; peer < p.world_size(); ++peer)
      EXPECT_EQ(transfer_digest(part, rank, peer, true), transfer_digest(whole, peer, rank, false));
  }
}

TEST(BuildStepGraph, CheckpointingKeepsLessAndRecoversRightBeforeBackward) {
  Problem p = small_problem(6, 2, 1, 6);
  const StepGraph full = build_step_graph(p);
  p.kept = choose_kept(p, ActivationPolicy::kCheckpoint, false, 0);
  const StepGraph checkpoint = build_step_graph(p);
  EXPECT_NE(full.hash(), checkpoint.hash());
  const auto total = [](const TierBytes& t) { return t[1] + t[2]; };
  EXPECT_LT(total(arena_bytes(checkpoint, 0)), total(arena_bytes(full, 0)));
  int recovers = 0;
  for (size_t i = 0; i < checkpoint.sequence.size(); ++i) {
    const Task& t = checkpoint.tasks[static_cast<size_t>(checkpoint.sequence[i])];
    if (t.kind != TaskKind::kRecover) continue;
    ++recovers;
    const Task& next = checkpoint.tasks[static_cast<size_t>(checkpoint.sequence[i + 1])];
    EXPECT_EQ(next.kind, TaskKind::kBackward);
    EXPECT_EQ(next.at.layer_begin, t.at.layer_begin);
    EXPECT_EQ(next.at.micro_batch, t.at.micro_batch);
  }
  EXPECT_EQ(recovers, 6 * 6);
}

TEST(Check, NamesWhatIsWrong) {
  const Problem p = small_problem(4, 2, 2, 3);
  const StepGraph good = build_step_graph(p);
  ASSERT_TRUE(check(good).empty());

  StepGraph bad = good;  // one replica synchronises its layers in another order
  std::vector<size_t> syncs;
  for (size_t i = 0; i < bad.sequence.size(); ++i) {
    const Task& t = bad.tasks[static_cast<size_t>(bad.sequence[i])];
    if (t.kind == TaskKind::kGradSync && t.at.rank == 1) syncs.push_back(i);
  }
  std::swap(bad.sequence[syncs[0]], bad.sequence[syncs[1]]);
  ASSERT_FALSE(check(bad).empty());
  EXPECT_THAT(check(bad).front().message, HasSubstr("in one collective"));

  bad = good;
  for (Lane& lane : bad.lanes)
    if (lane.kind == LaneKind::kSendForward && lane.rank == 0) lane.program.pop_back();
  ASSERT_FALSE(check(bad).empty());
  EXPECT_THAT(check(bad).front().message, HasSubstr("transfers"));

  EXPECT_THAT(check(good, 1000).front().message, HasSubstr("memory budget"));
}

// Backward before forward on the compute lane of one rank: a cycle with lane order.
TEST(Check, FindsADeadlockOfDependenciesWithLaneOrder) {
  StepGraph bad = build_step_graph(small_problem(3, 2, 1, 2));
  for (Lane& lane : bad.lanes)
    if (lane.kind == LaneKind::kCompute && lane.rank == 1)
      std::reverse(lane.program.begin(), lane.program.end());
  const auto problems = check(bad);
  ASSERT_FALSE(problems.empty());
  EXPECT_THAT(problems.front().message, HasSubstr("cannot finish"));
  EXPECT_THAT(problems.front().message, HasSubstr("waits for"));
}

}  // namespace
}  // namespace trainer
