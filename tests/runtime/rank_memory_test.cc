#include "runtime/rank_memory.h"

#include <gtest/gtest.h>

#include <set>

#include "runtime/toy_binder.h"
#include "schedule/problems.h"

namespace trainer {
namespace {

using testing::buffer_of;

struct Range {
  const std::byte *begin, *end;
};

Range range_of(const RankMemory& memory, const StepGraph& graph, size_t buffer) {
  const std::byte* begin = memory.address(graph, static_cast<BufferId>(buffer));
  return {begin, begin + graph.slot_bytes(graph.buffers[buffer]) * graph.buffers[buffer].versions};
}

TEST(RankMemory, EvaluationSharesWhatPersistsAndTouchesNothingElseOfIt) {
  for (int64_t element_bytes : {4, 2}) {
    Problem problem = testing::small_problem(4, 2, 1, 3, true, element_bytes);
    for (int rank : {0, 1}) {
      problem.ranks = {rank};
      problem.forward_only = false;
      const StepGraph training = build_step_graph(problem);
      problem.forward_only = true;
      const StepGraph evaluation = build_step_graph(problem);
      const RankMemory memory(training, {&evaluation}, rank);
      std::map<std::string, size_t> persistent;
      for (size_t b = 0; b < training.buffers.size(); ++b)
        if (training.buffers[b].persistent) persistent[training.buffers[b].name] = b;
      int shared = 0, own = 0;
      for (size_t b = 0; b < evaluation.buffers.size(); ++b) {
        const Range mine = range_of(memory, evaluation, b);
        if (evaluation.buffers[b].persistent) {
          const size_t other = persistent.at(evaluation.buffers[b].name);
          EXPECT_EQ(mine.begin, range_of(memory, training, other).begin) << evaluation.buffers[b].name;
          ++shared;
          continue;
        }
        ++own;
        for (const auto& [name, other] : persistent) {
          const Range theirs = range_of(memory, training, other);
          EXPECT_TRUE(mine.end <= theirs.begin || theirs.end <= mine.begin)
              << evaluation.buffers[b].name << " lies on " << name;
        }
      }
      EXPECT_GT(shared, 2);
      EXPECT_GT(own, 2);
    }
  }
}

TEST(RankMemory, VersionsTakeTurnsByStep) {
  StepGraphBuilder b;
  const BufferId w = b.add_buffer(buffer_of("w", 100, 3, true));
  b.append(testing::task_on(TaskKind::kForward, b.lane(0, LaneKind::kCompute), {{w, Access::kWrite}}));
  const StepGraph graph = place_memory(b.build());
  const RankMemory memory(graph, {}, 0);
  const std::byte* zero = memory.address(graph, w, 0);
  EXPECT_EQ(memory.address(graph, w, 1), zero + 128);
  EXPECT_EQ(memory.address(graph, w, 2), zero + 256);
  EXPECT_EQ(memory.address(graph, w, 3), zero);
  EXPECT_EQ(memory.address(graph, w, 3, 1), zero + 256);
  EXPECT_EQ(memory.address(graph, w, 1, 2), zero + 256);
  EXPECT_EQ(memory.address(graph, w, 4, 3), zero + 128);
}

TEST(RankMemory, DevicesAndSpacesHaveArenasOfTheirOwn) {
  StepGraphBuilder b;
  std::vector<BufferId> ids;
  for (int device : {0, 1})
    for (Space space : {Space::kDevice, Space::kHost})
      for (int i = 0; i < 2; ++i) {
        Buffer buffer = buffer_of("x", 256, 1, true);
        buffer.device = static_cast<int16_t>(space == Space::kHost ? -1 : device);
        buffer.space = space;
        ids.push_back(b.add_buffer(buffer));
      }
  const StepGraph graph = place_memory(b.build());
  EXPECT_EQ(arena_bytes(graph, 0)[1], 1024);
  EXPECT_EQ(arena_bytes(graph, 0, Space::kHost)[1], 1024);
  EXPECT_EQ(arena_sizes(graph, 0).at({1, Space::kDevice, Tier::kMedium}), 512);
  EXPECT_EQ(RankMemory::plan(graph, {}, 0)[1], 2048);
  const RankMemory memory(graph, {}, 0);
  std::set<std::byte*> places;
  for (BufferId id : ids) places.insert(memory.address(graph, id));
  EXPECT_EQ(places.size(), ids.size());
  for (auto it = places.begin(); std::next(it) != places.end(); ++it) EXPECT_GE(*std::next(it) - *it, 256);
}

TEST(RankMemory, RefusesWhatItDoesNotHold) {
  StepGraphBuilder b;
  Buffer other = buffer_of("other", 64);
  other.rank = 1;
  const BufferId mine = b.add_buffer(buffer_of("mine", 64)), theirs = b.add_buffer(other);
  const StepGraph graph = place_memory(b.build()), unknown = graph;
  const RankMemory memory(graph, {}, 0);
  EXPECT_NO_THROW(memory.address(graph, mine));
  EXPECT_ANY_THROW(memory.address(graph, theirs));
  EXPECT_ANY_THROW(memory.address(unknown, mine));
}

}  // namespace
}  // namespace trainer
