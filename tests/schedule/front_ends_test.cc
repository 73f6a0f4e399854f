#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/error.h"
#include "schedule/check.h"
#include "schedule/memory.h"
#include "schedule/pipelines.h"
#include "schedule/problems.h"
#include "schedule/round_robin.h"

namespace trainer {
namespace {

using testing::small_problem;
using FrontEnd = void (*)(StepGraphBuilder&, const Problem&);

// `blocks` blocks over `ranks` pipeline ranks with as many stages each as `stages_per_rank`.
Problem looped_problem(int blocks, int ranks, int stages_per_rank, int replicas, int micro_batches) {
  Problem p = small_problem(blocks, ranks, replicas, micro_batches);
  p.first_layer = first_layers(even_stage_layers(blocks, ranks * stages_per_rank));
  return p;
}

void expect_valid(const StepGraph& graph) {
  for (const Diagnostic& d : check(graph)) ADD_FAILURE() << d.message;
}

StepGraph build(FrontEnd front_end, const Problem& problem) {
  StepGraphBuilder builder;
  front_end(builder, problem);
  return place_memory(builder.build());
}

TEST(Pipelines, RunEveryLayerOfEveryMicroBatchOnceEachWay) {
  for (FrontEnd front_end : {&gpipe, &interleaved_1f1b, &looped_bfs})
    for (int ranks : {1, 2, 3})
      for (int chunks : {1, 2, 3}) {
        if (front_end == &gpipe && chunks > 1) continue;
        const Problem p = looped_problem(9, ranks, chunks, 2, 6);
        const StepGraph graph = build(front_end, p);
        expect_valid(graph);
        std::map<std::tuple<int, int, int>, int> forwards, backwards;
        for (const Task& t : graph.tasks) {
          if (t.kind != TaskKind::kForward && t.kind != TaskKind::kBackward) continue;
          const auto key = std::make_tuple(t.at.layer_begin, t.at.micro_batch, t.at.rank % p.replicas);
          ++(t.kind == TaskKind::kForward ? forwards : backwards)[key];
          EXPECT_EQ(t.at.rank / p.replicas, t.at.stage % ranks);
          EXPECT_GE(t.at.layer_begin, p.first_layer[static_cast<size_t>(t.at.stage)]);
          EXPECT_LT(t.at.layer_begin, p.first_layer[static_cast<size_t>(t.at.stage) + 1]);
        }
        EXPECT_EQ(forwards.size(), 11u * 6 * 2);
        EXPECT_EQ(backwards.size(), 11u * 6 * 2);
        for (const auto& [key, count] : forwards) EXPECT_EQ(count, 1);
        for (const auto& [key, count] : backwards) EXPECT_EQ(count, 1);
      }
}

TEST(Pipelines, InterleavedWithOneStageARankHasDeeperWarmUpThan1F1B) {
  const auto slots = interleaved_1f1b_slots(2, 0, 1, 4);
  const std::vector<Slot> expected = {{true, 0, 0}, {true, 1, 0},  {true, 2, 0},  {false, 0, 0},
                                      {true, 3, 0}, {false, 1, 0}, {false, 2, 0}, {false, 3, 0}};
  EXPECT_EQ(slots, expected);
}

TEST(Pipelines, InterleavedRunsItsStagesInRounds) {
  const auto slots = interleaved_1f1b_slots(2, 1, 2, 4);
  const std::vector<Slot> expected = {{true, 0, 1}, {true, 1, 1},  {true, 0, 3},  {false, 0, 3},
                                      {true, 1, 3}, {false, 1, 3}, {true, 2, 1},  {false, 0, 1},
                                      {true, 3, 1}, {false, 1, 1}, {true, 2, 3},  {false, 2, 3},
                                      {true, 3, 3}, {false, 3, 3}, {false, 2, 1}, {false, 3, 1}};
  EXPECT_EQ(slots, expected);
  EXPECT_THROW(interleaved_1f1b_slots(2, 0, 2, 5), InputError);
}

TEST(Pipelines, LoopedBfsTurnsAround) {
  const std::vector<Slot> expected = {{true, 0, 1},  {true, 1, 1},  {true, 0, 3},  {true, 1, 3},
                                      {false, 1, 3}, {false, 0, 3}, {false, 1, 1}, {false, 0, 1}};
  EXPECT_EQ(looped_bfs_slots(2, 1, 2, 2), expected);
  Problem p = looped_problem(4, 2, 2, 1, 4);
  p.virtual_ranks = 2;
  StepGraphBuilder builder;
  EXPECT_THROW(looped_bfs(builder, p), InputError);
}

// Blocks 1 to 6; forward in twos, the fused stage is the head and block 6, backward in ones.
RoundRobin small_plan(int devices) {
  RoundRobin plan;
  plan.stages.forward = {{0, 3}, {3, 5}, {5, 6}};
  plan.stages.backward = {{6, 8}, {4, 6}, {2, 4}, {0, 2}};
  plan.devices = devices;
  return plan;
}

Problem round_robin_problem(int micro_batches) { return small_problem(6, 1, 1, micro_batches, false, 2); }

StepGraph build_round_robin(const RoundRobin& plan, int micro_batches) {
  StepGraphBuilder builder;
  const Problem problem = round_robin_problem(micro_batches);
  round_robin_dispatch(builder, problem, plan);
  return place_memory(builder.build());
}

TEST(RoundRobinDispatch, CarriesTheCounterOverToTheNextStep) {
  EXPECT_EQ(round_robin_period(8, 30, false), 4);
  EXPECT_EQ(round_robin_period(8, 16, false), 1);
  EXPECT_EQ(round_robin_period(3, 7, false), 3);
  EXPECT_EQ(round_robin_period(3, 7, true), 6);
  for (int devices : {1, 2, 3}) {
    const StepGraph graph = build_round_robin(small_plan(devices), 6);
    const int rounds = 6 / devices, slots = rounds * 7;
    EXPECT_EQ(graph.period, round_robin_period(devices, slots, false));
    for (const Task& t : graph.tasks) {
      if (t.lane == kNone || t.at.stage < 0) continue;
      const int round = t.at.micro_batch / devices;
      if (t.at.micro_batch >= 0) {
        EXPECT_EQ(t.at.device, (t.at.phase * slots + round * 7 + t.at.stage) % devices);
      }
    }
  }
}

TEST(RoundRobinDispatch, IsValidAndRunsEveryLayerOnceEachWay) {
  for (bool delayed : {false, true})
    for (int devices : {1, 2, 3}) {
      RoundRobin plan = small_plan(devices);
      plan.delayed = delayed;
      const StepGraph graph = build_round_robin(plan, 6);
      expect_valid(graph);
      std::map<std::tuple<int, int, int>, std::map<TaskKind, int>> count;  // phase, layer, micro-batch
      std::map<std::pair<int, int>, std::set<int>> devices_of;             // kind, layer
      for (const Task& t : graph.tasks) {
        if (t.kind != TaskKind::kForward && t.kind != TaskKind::kBackward && t.kind != TaskKind::kRecover)
          continue;
        ++count[{t.at.phase, t.at.layer_begin, t.at.micro_batch}][t.kind];
        devices_of[{static_cast<int>(t.kind), t.at.layer_begin}].insert(t.at.device);
      }
      EXPECT_EQ(count.size(), static_cast<size_t>(graph.period) * 8 * 6);
      for (auto& [key, kinds] : count) {
        EXPECT_EQ(kinds[TaskKind::kForward], 1);
        EXPECT_EQ(kinds[TaskKind::kBackward], 1);
        // The forward of the fused stage is its recomputation.
        EXPECT_EQ(kinds[TaskKind::kRecover], std::get<1>(key) < 6 ? 1 : 0);
      }
      for (const auto& [key, seen] : devices_of) EXPECT_EQ(static_cast<int>(seen.size()), devices);
    }
}

// A device holds the weights of the slot it runs and of the next one, whatever the model.
TEST(RoundRobinDispatch, HoldsTwoSlotsWeightsOnADevice) {
  const StepGraph graph = build_round_robin(small_plan(2), 4);
  std::map<BufferId, size_t> last_use;
  for (size_t i = 0; i < graph.sequence.size(); ++i)
    for (const Use& use : graph.tasks[static_cast<size_t>(graph.sequence[i])].uses) last_use[use.buffer] = i;
  std::map<int, int> now, most;
  std::set<BufferId> live;
  for (size_t i = 0; i < graph.sequence.size(); ++i)
    for (const Use& use : graph.tasks[static_cast<size_t>(graph.sequence[i])].uses) {
      const Buffer& b = graph.buffers[static_cast<size_t>(use.buffer)];
      if (!b.name.starts_with("weights") || b.space != Space::kDevice) continue;
      if (live.insert(use.buffer).second) most[b.device] = std::max(most[b.device], ++now[b.device]);
      if (last_use[use.buffer] == i) --now[b.device];
    }
  for (int device : {0, 1}) {
    EXPECT_GE(most[device], 4);
    EXPECT_LE(most[device], 6);  // of three layers at most each
  }
}

TEST(RoundRobinDispatch, DelayedStepsDoNotWaitForTheUpdateBeforeThem) {
  const auto waits = [](const StepGraph& graph, int back) {
    // Whether some task of a later phase is behind the update of the phase `back` before it.
    for (const Task& t : graph.tasks)
      for (const Edge& e : t.after) {
        const Task& producer = graph.tasks[static_cast<size_t>(e.producer)];
        if (producer.kind == TaskKind::kUpdateShard && t.kind == TaskKind::kReload && e.distance == 0 &&
            t.at.phase == producer.at.phase + back)
          return true;
      }
    return false;
  };
  RoundRobin plan = small_plan(3);
  EXPECT_TRUE(waits(build_round_robin(plan, 3), 1));
  plan.delayed = true;
  EXPECT_FALSE(waits(build_round_robin(plan, 3), 1));
  EXPECT_TRUE(waits(build_round_robin(plan, 3), 2));
}

TEST(RoundRobinDispatch, RefusesWhatItCannotWrite) {
  const auto refuses = [](const RoundRobin& plan, const Problem& problem) {
    StepGraphBuilder builder;
    EXPECT_THROW(round_robin_dispatch(builder, problem, plan), InputError);
  };
  RoundRobin plan = small_plan(2);
  refuses(plan, round_robin_problem(5));
  refuses(plan, small_problem(6, 1, 1, 4, true));
  refuses(plan, small_problem(6, 1, 2, 4, false));
  refuses(plan, small_problem(7, 1, 1, 4, false));
  plan.micro_batches = 1;
  refuses(plan, round_robin_problem(4));
  plan = small_plan(2);
  plan.stages.forward.erase(plan.stages.forward.begin() + 1);
  refuses(plan, round_robin_problem(4));
  plan = small_plan(2);
  plan.stages.backward.pop_back();
  refuses(plan, round_robin_problem(4));
}

}  // namespace
}  // namespace trainer
