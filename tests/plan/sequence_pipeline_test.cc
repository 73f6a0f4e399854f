#include "schedule/sequence_pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "plan/sequence_plan.h"
#include "schedule/check.h"
#include "schedule/memory.h"
#include "schedule/problems.h"
#include "sim/simulator.h"

namespace trainer {
namespace {

using testing::small_problem;

StepGraph build(int stages, int micro_batches, const std::vector<int64_t>& segments, bool multiplex) {
  const Problem problem = small_problem(6, stages, 1, micro_batches, false);
  StepGraphBuilder builder;
  sequence_pipeline(builder, problem, {segments, multiplex});
  return place_memory(builder.build());
}

TEST(SequencePipelineGraph, IsValidAndComputesEveryPartOnce) {
  for (int stages : {1, 2, 3})
    for (int micro_batches : {1, 2})
      for (bool multiplex : {false, true}) {
        const StepGraph graph = build(stages, micro_batches, {7, 5, 4, 3, 3}, multiplex);
        for (const Diagnostic& d : check(graph)) ADD_FAILURE() << stages << " " << multiplex << d.message;
        std::map<std::tuple<int, int, int, int>, int> parts;
        for (const Task& t : graph.tasks)
          if (t.kind == TaskKind::kForward || t.kind == TaskKind::kBackward)
            ++parts[{t.kind == TaskKind::kForward, t.at.layer_begin, t.at.micro_batch, t.at.segment}];
        EXPECT_EQ(parts.size(), 2u * 8 * static_cast<size_t>(micro_batches) * 5);
        const Problem problem = small_problem(6, stages, 1, 1, false);
        for (const auto& [key, count] : parts) {
          int stage = 0;
          while (std::get<1>(key) >= problem.first_layer[static_cast<size_t>(stage) + 1]) ++stage;
          const int expected =
              multiplex ? boundary_sets(stages, 5, stage).stages_of(stage, std::get<3>(key)).size() : 1;
          EXPECT_EQ(count, expected);
        }
      }
}

TEST(SequencePipelineGraph, OneStageIsNotMultiplexed) {
  const StepGraph plain = build(1, 2, {3, 2, 2}, false), multiplexed = build(1, 2, {3, 2, 2}, true);
  EXPECT_EQ(plain.tasks.size(), multiplexed.tasks.size());
  for (const Task& t : multiplexed.tasks) EXPECT_EQ(t.at.rank, t.at.stage);
}

// Backwards wait for the backwards of later segments of the same layer, forwards for earlier ones.
TEST(SequencePipelineGraph, KeysAndValuesOrderTheSegments) {
  const StepGraph graph = build(2, 1, {2, 2, 2}, false);
  int forwards = 0, backwards = 0;
  for (const Task& t : graph.tasks)
    for (const Edge& e : t.after) {
      const Task& p = graph.tasks[static_cast<size_t>(e.producer)];
      if (p.kind != t.kind || p.at.layer_begin != t.at.layer_begin || e.distance != 0) continue;
      if (t.kind == TaskKind::kForward && p.at.segment == t.at.segment - 1) ++forwards;
      if (t.kind == TaskKind::kBackward && p.at.segment == t.at.segment + 1) ++backwards;
    }
  EXPECT_GE(forwards, 6 * 2);
  EXPECT_GE(backwards, 6 * 2);
}

// Seconds of a pipeline whose stages take one second a segment and direction.
double seconds(int stages, int segments, bool multiplex) {
  const Problem problem = small_problem(stages, stages, 1, 1, false);
  StepGraphBuilder builder;
  sequence_pipeline(builder, problem, {std::vector<int64_t>(static_cast<size_t>(segments), 1), multiplex});
  const StepGraph graph = builder.build();
  CostTable costs;
  for (const Task& t : graph.tasks) {
    const bool block = t.at.layer_begin > 0 && t.at.layer_begin <= stages;
    const bool compute = t.kind == TaskKind::kForward || t.kind == TaskKind::kBackward;
    const int parts =
        multiplex && compute
            ? boundary_sets(stages, segments, t.at.stage).stages_of(t.at.stage, t.at.segment).size()
            : 1;
    costs.seconds.push_back(compute && block ? 1.0 / parts : 0);
  }
  return simulate(graph, costs).end;
}

TEST(SequencePipelineGraph, BubbleIsTheFormulas) {
  for (int stages : {1, 2, 4})
    for (int segments : {8, 16})
      EXPECT_NEAR(seconds(stages, segments, false),
                  sequence_pipeline_seconds(stages, segments, 2.0 * segments), 1e-9);
}

// Multiplexed, the step takes what the rank with the most parts has to compute: no rank waits but for that
// one.
TEST(SequencePipelineGraph, MultiplexingTakesMostOfTheBubble) {
  for (int stages : {2, 3, 4, 8})
    for (int segments : {16, 32}) {
      std::vector<double> work(static_cast<size_t>(stages));
      for (int i = 0; i < stages; ++i)
        for (int x = 0; x < segments; ++x) {
          const IndexRange group = boundary_sets(stages, segments, i).stages_of(i, x);
          for (int r = group.begin; r < group.end; ++r) work[static_cast<size_t>(r)] += 2.0 / group.size();
        }
      const double busiest = *std::max_element(work.begin(), work.end());
      const double multiplexed = seconds(stages, segments, true);
      EXPECT_GE(multiplexed, busiest - 1e-9);
      if (stages <= 4) {
        EXPECT_NEAR(multiplexed, busiest, 1e-9) << stages << " " << segments;
      }
      EXPECT_LT(multiplexed - 2 * segments, 0.35 * (seconds(stages, segments, false) - 2 * segments));
    }
}

TEST(SequencePipelineGraph, RefusesWhatItCannotWrite) {
  StepGraphBuilder builder;
  EXPECT_THROW(sequence_pipeline(builder, small_problem(6, 2, 1, 1, true), {{1, 1}, false}), InputError);
  EXPECT_THROW(sequence_pipeline(builder, small_problem(6, 2, 2, 1, false), {{1, 1}, false}), InputError);
  EXPECT_THROW(sequence_pipeline(builder, small_problem(6, 2, 1, 1, false), {{}, false}), InputError);
  EXPECT_THROW(sequence_pipeline(builder, small_problem(6, 4, 1, 1, false), {{1, 1}, true}), InputError);
}

}  // namespace
}  // namespace trainer
