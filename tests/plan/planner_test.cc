#include "plan/planner.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "schedule/problems.h"
#include "support/thinning.h"

namespace trainer {
namespace {

// Blocks of flops and bytes that scale with the micro-batch, on devices with slow links.
PlanRequest small_request(int devices) {
  PlanRequest request;
  request.devices = devices;
  request.global_batch_size = 8;
  request.sequence_length = 10;
  request.element_bytes = 2;
  request.memory_budget = int64_t{1} << 30;
  request.tensor_sizes = {1};
  request.micro_batch_sizes = {1, 2};
  request.model = [](int tensor_ranks, int64_t b) {
    if (tensor_ranks > 1) input_error("not cut");
    PlanModel model;
    model.layers = testing::small_problem(4, 1, 1, 1, false).layers;
    for (LayerCatalogue& layer : model.layers) {
      layer.parameters = int64_t{1} << 17;
      layer.tensors = {{0, layer.parameters}};
      const bool block = layer.output_bytes > 0 && layer.gradient_bytes > 0;
      layer.forward_flops = (block ? 1e6 : 4e5) * static_cast<double>(b);
      layer.backward_flops = 2 * layer.forward_flops;
      layer.output_bytes *= 1000 * b;
      layer.gradient_bytes *= 1000 * b;
      for (SavedTensor& saved : layer.saved) {
        saved.bytes *= 1000 * b;
        saved.recompute_flops *= 2e4 * static_cast<double>(b);
      }
    }
    return model;
  };
  return request;
}

Platform small_platform() {
  Platform p;
  p.name = "small";
  p.matmul_per_second = {{"bf16", 1e6}};
  p.memory_bytes_per_second = 1e8;
  p.links[static_cast<size_t>(LinkUse::kBoundary)].across_nodes = {0.001, 5e6, ""};
  p.links[static_cast<size_t>(LinkUse::kCollective)].across_nodes = {0.001, 5e6, ""};
  p.collective_algorithm = "ring";
  return p;
}

TEST(Planner, IsNearTheBestOfAllPlansSimulated) {
  const Platform platform = small_platform();
  for (int devices : {2, 4, 8}) {
    if (testing::kThinned && devices > 2) continue;
    const PlanRequest request = small_request(devices);
    const PlanSearch search = search_plans(request, platform);
    ASSERT_FALSE(search.plans.empty());
    PlanEffort all;
    all.plans = 100'000;
    all.tasks = int64_t{1} << 40;
    double best = search.plans.front().parts.step_seconds;
    for (const Rejection& r : search.rejected)
      if (r.kind == RejectionKind::kSlower)
        best = std::min(best, cost_plan(request, platform, r.choice).parts.step_seconds);
    EXPECT_LE(search.plans.front().parts.step_seconds, 1.03 * best) << devices;
  }
}

TEST(Planner, EveryPlanFitsAndPartsAddUp) {
  PlanRequest request = small_request(4);
  request.memory_budget = 12 << 20;
  const PlanSearch search = search_plans(request, small_platform());
  ASSERT_FALSE(search.plans.empty());
  for (const Plan& plan : search.plans) {
    EXPECT_LE(plan.memory.total(), request.memory_budget);
    const StepParts& p = plan.parts;
    EXPECT_NEAR(p.main_path + p.communication + p.update + p.prefetch + p.recovery, p.step_seconds, 1e-9 * p.step_seconds);
    EXPECT_NEAR(plan.tokens_per_second, 80 / p.step_seconds, 1e-9 * plan.tokens_per_second);
    const Plan again = cost_plan(request, small_platform(), plan.choice);
    EXPECT_DOUBLE_EQ(again.parts.step_seconds, p.step_seconds);
    EXPECT_EQ(again.memory.total(), plan.memory.total());
  }
  EXPECT_TRUE(std::is_sorted(search.plans.begin(), search.plans.end(),
                             [](const Plan& a, const Plan& b) { return a.parts.step_seconds < b.parts.step_seconds; }));
  const auto rejected = [&](RejectionKind kind) {
    return std::count_if(search.rejected.begin(), search.rejected.end(),
                         [&](const Rejection& r) { return r.kind == kind; });
  };
  EXPECT_GT(rejected(RejectionKind::kMemory), 0);
  EXPECT_GT(rejected(RejectionKind::kSlower), 0);
}

TEST(Planner, WhatDoesNotFitIsSaidWithItsMissAndACure) {
  PlanRequest request = small_request(2);
  request.memory_budget = 9 << 20;
  const PlanSearch search = search_plans(request, small_platform());
  EXPECT_TRUE(search.plans.empty());
  ASSERT_TRUE(search.nearest);
  EXPECT_GT(search.nearest->bytes, request.memory_budget);
  EXPECT_NE(search.nearest->reason.find("more than the budget of 9.00 MiB"), std::string::npos)
      << search.nearest->reason;
  EXPECT_NE(search.advice.find("so may"), std::string::npos) << search.advice;
  PlanRequest generous = request;
  generous.memory_budget = search.nearest->bytes;
  EXPECT_FALSE(search_plans(generous, small_platform()).plans.empty());
}

TEST(Planner, ABatchThatFitsNoGrid) {
  PlanRequest request = small_request(3);
  request.global_batch_size = 7;
  request.micro_batch_sizes = {2};
  const PlanSearch search = search_plans(request, small_platform());
  EXPECT_TRUE(search.plans.empty());
  EXPECT_FALSE(search.nearest);
  EXPECT_NE(search.advice.find("global_batch_size"), std::string::npos);
}

// The largest sum over all ways to spread the blocks.
double best_by_force(int64_t blocks, const std::vector<double>& base, const std::vector<double>& each,
                     size_t stage = 0) {
  const auto last = base.size() - 1;
  if (stage == last) return base[stage] + static_cast<double>(blocks) * each[stage];
  double best = 1e300;
  for (int64_t n = 1; n + static_cast<int64_t>(last - stage) <= blocks; ++n)
    best = std::min(best, std::max(base[stage] + static_cast<double>(n) * each[stage],
                                   best_by_force(blocks - n, base, each, stage + 1)));
  return best;
}

TEST(Planner, StagesAreBalancedAsWellAsByForce) {
  for (int64_t blocks : {4, 7, 12})
    for (const std::vector<double>& base : {std::vector<double>{0, 0, 0}, {2.5, 0, 4}, {0, 0, 9}, {1, 7, 0}})
      for (const std::vector<double>& each : {std::vector<double>{1, 1, 1}, {3, 2, 1}, {2, 2, 1.5}}) {
        const auto layers = balanced_stage_layers(blocks, base, each);
        double largest = 0;
        int64_t sum = 0;
        for (size_t s = 0; s < base.size(); ++s) {
          sum += layers[s];
          largest = std::max(largest, base[s] + static_cast<double>(layers[s]) * each[s]);
        }
        EXPECT_EQ(sum, blocks);
        EXPECT_DOUBLE_EQ(largest, best_by_force(blocks, base, each));
      }
}

}  // namespace
}  // namespace trainer
