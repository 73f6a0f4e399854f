#include "schedule/memory.h"

#include <gtest/gtest.h>

#include "schedule/problems.h"
#include "schedule/tagged_arenas.h"

namespace trainer {
namespace {

using testing::overwritten_lines;
using testing::small_problem;

// The update of step t may still read its gradient while step t + 1 runs: nothing else may lie there.
TEST(PlaceMemory, BuffersOfSeveralVersionsShareNoAddresses) {
  StepGraphBuilder b;
  const auto make = [&](int versions) {
    Buffer buffer;
    buffer.bytes = 64;
    buffer.rank = 0;
    buffer.versions = static_cast<int16_t>(versions);
    return b.add_buffer(buffer);
  };
  const auto append = [&](TaskKind kind, LaneKind lane, std::vector<Use> uses) {
    Task t;
    t.kind = kind;
    t.lane = b.lane(0, lane);
    t.at.rank = 0;
    t.uses = std::move(uses);
    return b.append(std::move(t));
  };
  const BufferId activation = make(1), gradient = make(2);
  const TaskId forward = append(TaskKind::kForward, LaneKind::kCompute, {{activation, Access::kWrite}});
  append(TaskKind::kBackward, LaneKind::kCompute, {{activation, Access::kRead}});
  append(TaskKind::kBackward, LaneKind::kCompute, {{gradient, Access::kWrite}});
  const TaskId update = append(TaskKind::kUpdateShard, LaneKind::kHostCompute, {{gradient, Access::kRead}});
  const StepGraph graph = place_memory(b.build());
  const Buffer& g = graph.buffers[static_cast<size_t>(gradient)];
  const int64_t at = graph.buffers[static_cast<size_t>(activation)].offset;
  EXPECT_TRUE(at + 64 <= g.offset || g.offset + 128 <= at);
  for (const Edge& edge : graph.tasks[static_cast<size_t>(forward)].after) EXPECT_NE(edge.producer, update);
}

TEST(PlaceMemory, AnyLegalOrderKeepsContentUntilItsLastReader) {
  for (int stages : {1, 2, 3})
    for (auto policy : {ActivationPolicy::kFullSave, ActivationPolicy::kCheckpoint}) {
      Problem p = small_problem(4, stages, 2, 5, true, 2);
      p.kept = choose_kept(p, policy, false, 0);
      const StepGraph graph = build_step_graph(p);
      for (uint64_t seed = 0; seed < 20; ++seed) EXPECT_EQ(overwritten_lines(graph, 4, seed), 0);
    }
}

TEST(PlaceMemory, TheTaggedOracleSeesAMissingReuseEdge) {
  // Without the edges that placement adds, some order overwrites a buffer that is still read.
  StepGraph graph = build_step_graph(small_problem(4, 3, 1, 6));
  for (Task& task : graph.tasks)
    if (task.kind == TaskKind::kReceive)
      std::erase_if(task.after, [&](const Edge& e) {
        return graph.tasks[static_cast<size_t>(e.producer)].kind != TaskKind::kSend;
      });
  int violations = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) violations += overwritten_lines(graph, 4, seed);
  EXPECT_GT(violations, 0);
}

TEST(PlaceMemory, ReusesAddressesOfFinishedMicroBatches) {
  const auto medium = [](int m) { return arena_bytes(build_step_graph(small_problem(4, 2, 1, m)), 0)[1]; };
  EXPECT_EQ(medium(4), medium(16));  // two micro-batches in flight on the first stage, however many there are
  EXPECT_LT(medium(1), medium(4));
}

TEST(PlaceMemory, MemoryOverTheProgramStaysWithinTheArenas) {
  const StepGraph graph = build_step_graph(small_problem(6, 2, 1, 8));
  const TierBytes arenas = arena_bytes(graph, 0);
  for (const MemoryStep& step : memory_over_program(graph, 0))
    for (size_t tier = 0; tier < kTierCount; ++tier) EXPECT_LE(step.in_use[tier], arenas[tier]);
}

}  // namespace
}  // namespace trainer
