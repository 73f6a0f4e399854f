// Plans of one arithmetic class learn the same bits: pipeline degree, uneven stages, few micro-batches,
// activation policy, threads, delays.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/tiny_grid.h"

namespace trainer {
namespace {

using testing::expect_same_bits;
using testing::GridPlan;
using testing::GridResult;
using testing::run_grid;

void expect_it_learned(const GridResult& r) {
  EXPECT_GT(r.steps.front().gradient_norm, 1e-3);
  EXPECT_NE(r.steps.front().loss, r.steps.back().loss);
}

TEST(Plans, EveryPipelineDegreeAndNumberOfMicroBatches) {
  for (int m = 1; m <= 9; ++m) {
    GridPlan plan;
    plan.micro_batches = m;
    const GridResult serial = run_grid(plan);
    expect_it_learned(serial);
    for (int stages : {2, 3, 4}) {
      plan.stages = stages;
      const GridResult piped = run_grid(plan);
      EXPECT_NE(serial.plan, piped.plan);
      SCOPED_TRACE(fmt::format("{} stages, {} micro-batches", stages, m));
      expect_same_bits(serial, piped);
    }
  }
}

TEST(Plans, UnevenStages) {
  GridPlan plan;
  plan.micro_batches = 5;
  const GridResult serial = run_grid(plan);
  for (const auto& layers : std::vector<std::vector<int64_t>>{{1, 4}, {4, 1}, {1, 3, 1}, {1, 1, 1, 2}}) {
    plan.stages = static_cast<int>(layers.size());
    plan.stage_layers = layers;
    expect_same_bits(serial, run_grid(plan));
  }
}

TEST(Plans, EveryArchitectureTiedOrNot) {
  for (auto architecture :
       {Architecture::kLlama, Architecture::kQwen2, Architecture::kQwen3, Architecture::kGpt2})
    for (bool tied : {true, false}) {
      GridPlan plan;
      plan.model = testing::tiny_model(architecture, tied);
      const GridResult serial = run_grid(plan);
      expect_it_learned(serial);
      plan.stages = 3;
      expect_same_bits(serial, run_grid(plan));
    }
}

TEST(Plans, ActivationPolicyPrecisionAndThreads) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    GridPlan plan;
    plan.dtype = dtype;
    const GridResult full = run_grid(plan);
    expect_it_learned(full);
    plan.activation = ActivationPolicy::kCheckpoint;
    plan.stages = 2;
    const GridResult checkpointed = run_grid(plan);
    EXPECT_NE(full.plan, checkpointed.plan);
    expect_same_bits(full, checkpointed);
    plan.stages = 1;
    plan.threads = 2;
    expect_same_bits(full, run_grid(plan));
  }
}

TEST(Plans, DelaysAndRendezvousChangeNothing) {
  GridPlan plan;
  plan.stages = 2;
  plan.replicas = 2;
  plan.micro_batches = 6;
  const GridResult calm = run_grid(plan);
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    plan.network = {seed % 2 ? Delivery::kRendezvous : Delivery::kEager,
                    {seed, std::chrono::microseconds(300)}};
    expect_same_bits(calm, run_grid(plan));
  }
}

TEST(Plans, DataParallelPipelineEqualsDataParallelAlone) {
  GridPlan plan;
  plan.replicas = 2;
  plan.micro_batches = 6;
  const GridResult flat = run_grid(plan);
  plan.stages = 3;
  expect_same_bits(flat, run_grid(plan));
}

TEST(Plans, ReproducibleGroupHidesTheNumberOfReplicas) {
  GridPlan plan;
  plan.micro_batches = 8;
  plan.reproducible_group = 4;
  plan.replicas = 4;
  const GridResult four = run_grid(plan);
  expect_it_learned(four);
  for (int replicas : {1, 2})
    for (int stages : {1, 2}) {
      plan.replicas = replicas;
      plan.stages = stages;
      const GridResult other = run_grid(plan);
      EXPECT_NE(four.plan, other.plan);
      expect_same_bits(four, other);
    }
  // Without the group the sums are taken in another order, which shows; else this test would show nothing.
  plan.reproducible_group = 0;
  plan.replicas = plan.stages = 1;
  const GridResult plain = run_grid(plan);
  EXPECT_NE(plain.weights, four.weights);
  EXPECT_NEAR(plain.steps.back().loss, four.steps.back().loss, 1e-4);
}

TEST(Plans, TiedCopiesStayEqual) {
  for (int replicas : {1, 2}) {
    GridPlan plan;
    plan.stages = 2;
    plan.replicas = replicas;
    plan.steps = 10;
    const GridResult result = run_grid(plan);
    ASSERT_EQ(result.tied_copies.size(), static_cast<size_t>(2 * replicas));
    for (const auto& copy : result.tied_copies) EXPECT_EQ(copy, result.tied_copies.front());
  }
}

// Clipping below and above: the unclipped norm does not depend on the plan, and a norm under the limit leaves
// the gradient alone.
TEST(Plans, ClippingUsesTheNormOfAllStages) {
  GridPlan plan;
  plan.clip = 0;
  const GridResult unclipped = run_grid(plan);
  plan.clip = 1e6;
  expect_same_bits(unclipped, run_grid(plan));
  plan.clip = 0.01;
  const GridResult clipped = run_grid(plan);
  EXPECT_EQ(clipped.steps.front().gradient_norm, unclipped.steps.front().gradient_norm);
  plan.stages = 4;
  expect_same_bits(clipped, run_grid(plan));
}

}  // namespace
}  // namespace trainer
