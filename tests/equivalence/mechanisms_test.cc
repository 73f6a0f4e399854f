// Every mechanism can be left out by itself, in any combination, and what is learned does not change by a
// bit.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/tiny_grid.h"

namespace trainer {
namespace {

using testing::GridPlan;
using testing::GridResult;
using testing::run_grid;

void expect_same_bits(const GridResult& a, const GridResult& b) {
  ASSERT_EQ(a.steps.size(), b.steps.size());
  for (size_t i = 0; i < a.steps.size(); ++i) {
    EXPECT_EQ(a.steps[i].loss, b.steps[i].loss) << "step " << i + 1;
    EXPECT_EQ(a.steps[i].gradient_norm, b.steps[i].gradient_norm) << "step " << i + 1;
  }
  for (const auto& [name, values] : a.state) EXPECT_EQ(values, b.state.at(name)) << name;
}

std::vector<std::vector<std::string>> all_lists_of_passes() {
  const auto names = pass_names();
  std::vector<std::vector<std::string>> lists;
  for (size_t bits = 0; bits < size_t{1} << names.size(); ++bits) {
    lists.emplace_back();
    for (size_t i = 0; i < names.size(); ++i)
      if (bits >> i & 1) lists.back().push_back(names[i]);
  }
  return lists;
}

std::string describe(const GridPlan& plan) {
  return fmt::format("P {} D {} zero {} activation {} passes {}", plan.stages, plan.replicas, plan.zero_stage,
                     static_cast<int>(plan.activation), fmt::join(plan.passes, ","));
}

class Mechanisms : public ::testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(Mechanisms, AnyCombinationLearnsTheSameBits) {
  const auto [stages, replicas] = GetParam();
  GridPlan plan;
  plan.steps = 2;
  plan.micro_batches = 6;
  plan.replicas = replicas;
  plan.passes = {};
  const GridResult baseline = run_grid(plan);
  EXPECT_GT(baseline.steps.front().gradient_norm, 1e-3);
  EXPECT_NE(baseline.steps[0].loss, baseline.steps[1].loss);
  plan.stages = stages;
  plan.last_stage_keeps = false;
  std::set<uint64_t> plans;
  int runs = 0;
  for (const auto& passes : all_lists_of_passes())
    for (auto activation :
         {ActivationPolicy::kFullSave, ActivationPolicy::kSelective, ActivationPolicy::kCheckpoint})
      for (int zero = 0; zero <= 3; ++zero) {
        plan.passes = passes;
        plan.activation = activation;
        plan.zero_stage = zero;
        SCOPED_TRACE(describe(plan));
        const GridResult result = run_grid(plan);
        expect_same_bits(baseline, result);
        plans.insert(result.plan);
        ++runs;
      }
  EXPECT_EQ(plans.size(), static_cast<size_t>(runs)) << "plans that do not differ prove nothing";
}

INSTANTIATE_TEST_SUITE_P(Grids, Mechanisms,
                         ::testing::Combine(::testing::Values(1, 2, 4), ::testing::Values(1, 2)),
                         [](const auto& info) {
                           return fmt::format("P{}D{}", std::get<0>(info.param), std::get<1>(info.param));
                         });

}  // namespace
}  // namespace trainer
