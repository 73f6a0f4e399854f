#include "sim/memory_use.h"

#include <gtest/gtest.h>

#include <random>

#include "graphs.h"
#include "schedule/problems.h"

namespace trainer {
namespace {

CostTable random_costs(const StepGraph& graph, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> uniform(0.1, 2);
  CostTable costs;
  for (size_t i = 0; i < graph.tasks.size(); ++i) costs.seconds.push_back(uniform(random));
  return costs;
}

TEST(MemoryUse, ABufferIsInUseFromItsFirstUseToItsLast) {
  StepGraphBuilder builder;
  const LaneId lane = builder.lane(0, LaneKind::kCompute);
  const auto buffer = [&](int64_t bytes, bool persistent) {
    Buffer b;
    b.rank = 0;
    b.device = 0;
    b.bytes = bytes;
    b.persistent = persistent;
    b.tier = persistent ? Tier::kLong : Tier::kShort;
    return builder.add_buffer(b);
  };
  const BufferId weights = buffer(128, true), x = buffer(256, false), y = buffer(64, false);
  using testing::bare_task;
  builder.append(bare_task(TaskKind::kForward, lane,
                           {{weights, Access::kRead, Role::kWeights}, {x, Access::kWrite, Role::kOutput}}));
  builder.append(bare_task(TaskKind::kForward, lane,
                           {{x, Access::kRead, Role::kInput}, {y, Access::kWrite, Role::kOutput}}));
  builder.append(bare_task(TaskKind::kBackward, lane, {{y, Access::kRead, Role::kInput}}));
  const StepGraph graph = place_memory(builder.build());
  const auto use = memory_over_time(graph, simulate(graph, {{1, 2, 4}, {}, {}, {}, {}, {}}, 1));
  const MemoryUse& fixed = use.at({0, {0, Space::kDevice, Tier::kLong}});
  const MemoryUse& moving = use.at({0, {0, Space::kDevice, Tier::kShort}});
  EXPECT_EQ(fixed.peak, 128);
  EXPECT_EQ(fixed.points.size(), 1u);
  std::vector<std::pair<double, int64_t>> points;
  for (const auto& point : moving.points) points.emplace_back(point.time, point.bytes);
  EXPECT_EQ(points, (std::vector<std::pair<double, int64_t>>{{0, 256}, {1, 320}, {3, 64}, {7, 0}}));
  EXPECT_EQ(moving.peak, 320);
}

// Whatever the costs, steps that overlap included.
TEST(MemoryUse, NeverExceedsTheArenas) {
  for (int stages : {1, 2, 3})
    for (ActivationPolicy activation : {ActivationPolicy::kFullSave, ActivationPolicy::kCheckpoint})
      for (unsigned seed = 0; seed < 5; ++seed) {
        Problem problem = testing::small_problem(6, stages, 2, 5, true, 2);
        problem.kept = choose_kept(problem, activation, false, 0);
        const StepGraph graph = build_step_graph(problem);
        const auto use = memory_over_time(graph, simulate(graph, random_costs(graph, seed), 3));
        for (int rank = 0; rank < problem.world_size(); ++rank)
          for (const auto& [arena, size] : arena_sizes(graph, rank)) {
            const int64_t peak = use.at({static_cast<int16_t>(rank), arena}).peak;
            EXPECT_LE(peak, size) << "rank " << rank << " tier " << name_of(arena.tier);
            EXPECT_GT(peak, 0);
          }
      }
}

// With one lane the program runs in its own order: the plan's memory is what is in use.
TEST(MemoryUse, OneStageUsesWhatThePlanSays) {
  const StepGraph graph = build_step_graph(testing::small_problem(4, 1, 1, 3));
  std::array<int64_t, kTierCount> planned{};
  for (const MemoryStep& step : memory_over_program(graph, 0))
    for (size_t tier = 0; tier < kTierCount; ++tier)
      planned[tier] = std::max(planned[tier], step.in_use[tier]);
  const auto use = memory_over_time(graph, simulate(graph, random_costs(graph, 1), 2));
  for (Tier tier : {Tier::kLong, Tier::kMedium, Tier::kShort})
    EXPECT_EQ(use.at({0, {0, Space::kDevice, tier}}).peak, planned[static_cast<size_t>(tier)]);
}

}  // namespace
}  // namespace trainer
