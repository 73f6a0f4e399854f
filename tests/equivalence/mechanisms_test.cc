// Every mechanism can be left out by itself, in any combination, and what is learned does not change by a
// bit.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/thinning.h"
#include "support/tiny_grid.h"

namespace trainer {
namespace {

using testing::describe;
using testing::expect_same_bits;
using testing::GridPlan;
using testing::GridResult;
using testing::run_grid;

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
  std::set<uint64_t> plans, programs;
  int runs = 0;
  testing::Thinning thinning;
  for (const auto& passes : all_lists_of_passes())
    for (auto activation :
         {ActivationPolicy::kFullSave, ActivationPolicy::kSelective, ActivationPolicy::kCheckpoint})
      for (int zero = 0; zero <= 3; ++zero) {
        if (thinning.skips()) continue;
        plan.passes = passes;
        plan.activation = activation;
        plan.zero_stage = zero;
        SCOPED_TRACE(describe(plan));
        const GridResult result = run_grid(plan);
        expect_same_bits(baseline, result);
        plans.insert(result.plan);
        programs.insert(result.program);
        ++runs;
      }
  EXPECT_EQ(plans.size(), static_cast<size_t>(runs)) << "plans that do not differ prove nothing";
  // Eight lists of the three passes and three policies; under full_save, half of the lists recover nothing
  // ahead. ZeRO 1 and 2 are one program, and all are without replicas; transfer_priority needs collectives.
  const size_t by_list = 8 * 3 - 4, by_zero = replicas > 1 ? 3 : 1,
               by_priority = stages * replicas > 1 ? 2 : 1;
  if (!testing::kThinned) {
    EXPECT_GE(programs.size(), by_list * by_zero * by_priority);
  }
}

INSTANTIATE_TEST_SUITE_P(Grids, Mechanisms,
                         ::testing::Combine(::testing::Values(1, 2, 4), ::testing::Values(1, 2)),
                         [](const auto& info) {
                           return fmt::format("P{}D{}", std::get<0>(info.param), std::get<1>(info.param));
                         });

}  // namespace
}  // namespace trainer
