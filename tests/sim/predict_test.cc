#include "sim/predict.h"

#include <gtest/gtest.h>

#include <ctime>

#include "base/error.h"
#include "schedule/problems.h"
#include "sim/graphs.h"
#include "sim/pace.h"
#include "support/thinning.h"

namespace trainer {
namespace {

// Nodes whose devices share memory and a network, and devices that share one way for everything.
Platform shared_platform(int devices_per_node) {
  Platform p;
  p.name = "shared";
  p.devices_per_node = devices_per_node;
  p.matmul_per_second = {{"fp32", 1e3}, {"bf16", 1e3}};
  p.memory_bytes_per_second = 700;
  p.memory_group = "memory";
  p.shared_links["memory"] = {SharedLink::Scope::kNode, 900};
  p.shared_links["network"] = {SharedLink::Scope::kNode, 130};
  p.shared_links["switch"] = {SharedLink::Scope::kPlatform, 1100};
  p.links[static_cast<size_t>(LinkUse::kBoundary)].within_node = {0.01, 300, "switch"};
  p.links[static_cast<size_t>(LinkUse::kBoundary)].across_nodes = {0.02, 100, "switch"};
  p.links[static_cast<size_t>(LinkUse::kCollective)].within_node = {0.01, 400, "network"};
  p.links[static_cast<size_t>(LinkUse::kCollective)].across_nodes = {0.02, 90, "network"};
  p.collective_algorithm = "ring";
  return p;
}

void expect_same(const StepAnalysis& a, const StepAnalysis& b, const std::string& what) {
  const double tolerance = 1e-12 * a.step_seconds;
  EXPECT_GT(a.step_seconds, 0);
  EXPECT_NEAR(a.step_seconds, b.step_seconds, tolerance) << what;
  EXPECT_NEAR(a.main_path, b.main_path, tolerance) << what;
  EXPECT_NEAR(a.communication, b.communication, 2 * tolerance) << what;
  EXPECT_NEAR(a.update, b.update, 2 * tolerance) << what;
  EXPECT_NEAR(a.recovery, b.recovery, 2 * tolerance) << what;
  EXPECT_NEAR(a.tail, b.tail, tolerance) << what;
  EXPECT_NEAR(a.bubble_ratio, b.bubble_ratio, 1e-12) << what;
}

TEST(Folding, ChangesNothing) {
  int foldable = 0;
  testing::Thinning thinning;
  for (int stages : {1, 2, 3, 4})
    for (int replicas : {1, 2, 3, 8})
      for (int node : {1, 3, 4})
        for (int variant : {0, 1, 2, 3}) {
          Problem problem = testing::small_problem(stages + 2, stages, replicas, 4, true, 2);
          if (variant > 0) problem.kept = choose_kept(problem, ActivationPolicy::kCheckpoint, false, 0);
          if (variant > 1) {
            problem.passes = {"forward_side_recovery", "layer_state_pipeline", "update_prefetch"};
            problem.zero_stage = variant - 1;
          }
          for (auto& layer : problem.layers) {
            // Cut evenly among any of these numbers of replicas.
            constexpr int64_t kTensors = 24, kElements = 16;
            layer.parameters = kTensors * kElements;
            layer.tensors.clear();
            for (int64_t t = 0; t < kTensors; ++t) layer.tensors.push_back({t * kElements, kElements});
            layer.forward_flops = layer.gradient_bytes == 0 ? 10 : 5000;
            layer.backward_flops = 2 * layer.forward_flops;
          }
          const Platform platform = shared_platform(node);
          if (!why_not_foldable(problem, platform).empty()) continue;
          ++foldable;
          if (thinning.skips()) continue;
          const StepGraph full = build_step_graph(problem);
          const StepAnalysis all = analyse_step(full, cost_model(full, problem, platform));
          const Prediction one = predict_step(problem, platform);
          EXPECT_EQ(one.graph.tasks.size() * static_cast<size_t>(replicas), full.tasks.size());
          expect_same(all, one.step,
                      fmt::format("P {} D {} node {} variant {}", stages, replicas, node, variant));
        }
  EXPECT_GT(foldable, 100);
}

// Two replicas that are slow in turn: a step takes as long as the slower of them, whichever that is.
TEST(Pace, ReplicasWaitForTheSlower) {
  const Problem problem = testing::small_problem(2, 1, 2, 2, false, 4);
  Platform platform = shared_platform(1);
  platform.memory_group.clear();
  const double even = predict_step(problem, platform).step.step_seconds;
  platform.pace = {1e9, {{2, 1}, {1, 2}}};
  const double uneven = predict_step(problem, platform).step.step_seconds;
  EXPECT_GT(uneven, 1.5 * even);
  platform.pace.ranks = {{2, 2}};
  EXPECT_NEAR(predict_step(problem, platform).step.step_seconds, uneven, 1e-9 * uneven);
  platform.pace.ranks = {{1, 1}};
  EXPECT_NEAR(predict_step(problem, platform).step.step_seconds, even, 1e-9 * even);
}

TEST(Pace, TheStepIsTheMedianOfThoseThatWereFound) {
  const Problem problem = testing::small_problem(2, 1, 1, 1, false, 4);
  Platform platform = shared_platform(1);
  platform.memory_group.clear();
  const double even = predict_step(problem, platform).step.step_seconds;
  platform.pace = {1e9, {{1, 3, 1, 1, 2}}};
  EXPECT_NEAR(predict_step(problem, platform).step.step_seconds, even, 1e-9 * even);
  platform.pace.ranks = {{1, 3, 2, 2, 1}};
  EXPECT_NEAR(predict_step(problem, platform).step.step_seconds, 2 * even, 1e-9 * even);
}

// Work of one second from the second half of a piece on is half at its pace and half at the next one's.
TEST(Pace, FollowsTheWorkOfALane) {
  StepGraphBuilder builder;
  const LaneId lane = builder.lane(0, LaneKind::kCompute);
  for (int i = 0; i < 3; ++i) builder.append(testing::bare_task(TaskKind::kForward, lane));
  const StepGraph graph = builder.build();
  CostTable costs;
  costs.seconds = {0.5, 1, 0};
  costs.bytes = {0, 4, 0};
  costs.rate = {0, 8, 0};
  const CostTable paced = at_pace(graph, costs, {1, {{1, 3}}}, 0);
  EXPECT_EQ(paced.seconds, (std::vector<double>{0.5, 1 * (0.5 * 1 + 1 * 3) / 1.5, 0}));
  EXPECT_DOUBLE_EQ(paced.bytes[1], 4 * 3.5 / 1.5);
  EXPECT_DOUBLE_EQ(at_pace(graph, costs, {1, {{1, 3}}}, 1).seconds[0], 1.5);
}

TEST(Folding, IsRefusedWhereReplicasLieDifferently) {
  const Problem problem = testing::small_problem(4, 4, 6, 2);
  EXPECT_NE(why_not_foldable(problem, shared_platform(8)), "");
  EXPECT_EQ(why_not_foldable(problem, shared_platform(3)), "");
  EXPECT_EQ(why_not_foldable(problem, shared_platform(24)), "");
  EXPECT_EQ(predict_step(problem, shared_platform(8)).graph.lanes.size() % 24, 0u);
}

TEST(Folding, AThousandRanksTakeNoTime) {
  const Problem problem = testing::small_problem(64, 8, 128, 128, false, 2);
  const std::clock_t begin = std::clock();
  const Prediction prediction = predict_step(problem, shared_platform(1), 3);
  [[maybe_unused]] const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  EXPECT_GT(prediction.step.step_seconds, 0);
#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(seconds, 3);
#endif
}

}  // namespace
}  // namespace trainer
