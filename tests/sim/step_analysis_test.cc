#include "sim/step_analysis.h"

#include <gtest/gtest.h>

#include <map>

#include "schedule/problems.h"
#include "sim/memory_use.h"

namespace trainer {
namespace {

Problem problem_with(int stages, ActivationPolicy activation, int64_t element_bytes = 2) {
  Problem problem = testing::small_problem(4, stages, 2, 6, false, element_bytes);
  problem.kept = choose_kept(problem, activation, false, 0);
  return problem;
}

// Forward 1, Backward 2, the given seconds for other kinds; only blocks count on the main path.
CostTable costs_of(const StepGraph& graph, int layers, const std::map<TaskKind, double>& others) {
  CostTable costs;
  for (const Task& task : graph.tasks) {
    const bool block = task.at.layer_begin > 0 && task.at.layer_begin < layers - 1;
    double seconds = task.kind == TaskKind::kForward ? 1 : task.kind == TaskKind::kBackward ? 2 : 0;
    if (is_main_path(task.kind) && !block) seconds = 0;
    if (const auto it = others.find(task.kind); it != others.end()) seconds = it->second;
    costs.seconds.push_back(seconds);
  }
  return costs;
}

TEST(StepAnalysis, PartsOfAStepWithEverythingAtItsEnd) {
  const Problem problem = problem_with(2, ActivationPolicy::kCheckpoint);
  const StepGraph graph = build_step_graph(problem);
  const CostTable costs = costs_of(graph, problem.layer_count(),
                                   {{TaskKind::kRecover, 0.5},
                                    {TaskKind::kGradSync, 0.3},
                                    {TaskKind::kUpdateShard, 0.2},
                                    {TaskKind::kPrefetchWeights, 0.1}});
  const StepAnalysis a = analyse_step(graph, costs);
  const double micro_batches = 6 + 2 - 1;
  EXPECT_NEAR(a.main_path, micro_batches * 2 * 3, 1e-9);
  // Two layers each on a stage, and embedding or head.
  EXPECT_NEAR(a.communication, 3 * 0.3, 1e-9);
  EXPECT_NEAR(a.update, 3 * 0.2, 1e-9);
  EXPECT_NEAR(a.prefetch, 3 * 0.1, 1e-9);
  EXPECT_NEAR(a.recovery, micro_batches * 2 * 0.5, 1e-9);
  EXPECT_NEAR(a.step_seconds, a.main_path + a.communication + a.update + a.prefetch + a.recovery, 1e-12);
  // Compute runs 6 micro-batches of 2 layers, and update and refresh.
  EXPECT_NEAR(a.bubble_ratio, 1 - (6 * 2 * 3.5 + 3 * 0.3) / a.step_seconds, 1e-9);
}

TEST(StepAnalysis, TheTailIsWhatLiesBetweenBackwardAndForward) {
  const Problem problem = problem_with(1, ActivationPolicy::kFullSave, 4);
  const StepGraph graph = build_step_graph(problem);
  const CostTable costs =
      costs_of(graph, problem.layer_count(), {{TaskKind::kGradSync, 1}, {TaskKind::kUpdateShard, 0.5}});
  // Six layers: synchronised one after another, then updated; the first Forward waits for its own update only
  // as far as the one lane runs them all first.
  EXPECT_NEAR(analyse_step(graph, costs).tail, 6 * 1 + 6 * 0.5, 1e-9);
}

TEST(StepAnalysis, WhatCostsNothingIsExposedNowhere) {
  const Problem problem = problem_with(2, ActivationPolicy::kFullSave);
  const StepGraph graph = build_step_graph(problem);
  const StepAnalysis a = analyse_step(graph, costs_of(graph, problem.layer_count(), {}));
  EXPECT_EQ(a.communication, 0);
  EXPECT_EQ(a.update, 0);
  EXPECT_EQ(a.prefetch, 0);
  EXPECT_EQ(a.recovery, 0);
  EXPECT_EQ(a.step_seconds, a.main_path);
}

TEST(StepAnalysis, TheTimelineHasEveryTaskAndTheMemory) {
  const Problem problem = problem_with(2, ActivationPolicy::kCheckpoint);
  const StepGraph graph = build_step_graph(problem);
  const Simulation simulation = simulate(graph, costs_of(graph, problem.layer_count(), {}), 2);
  const Timeline timeline = to_timeline(graph, simulation, 11);
  ASSERT_EQ(timeline.events.size(), graph.tasks.size() * 2);
  EXPECT_EQ(timeline.events.front().step, 11);
  EXPECT_EQ(timeline.events.back().step, 12);
  const auto use = memory_over_time(graph, simulation);
  std::map<int, std::array<int64_t, 3>> peaks;
  for (const MemorySample& sample : timeline.memory) {
    auto& peak = peaks[sample.rank];
    peak = {std::max(peak[0], sample.long_tier), std::max(peak[1], sample.medium_tier),
            std::max(peak[2], sample.short_tier)};
  }
  EXPECT_EQ(peaks.size(), 4u);
  for (const auto& [rank, peak] : peaks)
    for (size_t tier = 0; tier < 3; ++tier)
      EXPECT_EQ(peak[tier],
                use.at({static_cast<int16_t>(rank), {0, Space::kDevice, static_cast<Tier>(tier)}}).peak);
}

}  // namespace
}  // namespace trainer
