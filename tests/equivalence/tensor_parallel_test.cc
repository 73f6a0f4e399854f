// Tensor parallelism through the whole trainer: close to one rank's results at any size, the same bits for
// one size whatever else the plan does.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "checkpoint/hugging_face.h"
#include "checkpoint/synthetic_model.h"
#include "checkpoint/test_folder.h"
#include "support/thinning.h"
#include "support/tiny_grid.h"

namespace trainer {
namespace {

using testing::expect_same_bits;
using testing::GridPlan;
using testing::GridResult;
using testing::run_grid;

// Four key/value heads; neither 2 nor 4 divides the vocabulary of 61.
ModelConfig model_of(Architecture architecture, bool tied) {
  ModelConfig model = testing::tiny_model(architecture, tied);
  model.num_query_groups = 4;
  if (architecture != Architecture::kGpt2) model.num_attention_heads = 8;
  return model;
}

GridPlan plan_of(Architecture architecture = Architecture::kLlama, bool tied = true) {
  GridPlan plan;
  plan.model = model_of(architecture, tied);
  // Gradients that are zero but for rounding must not become whole steps.
  plan.adam_eps = 1e-3;
  return plan;
}

void expect_close(const GridResult& actual, const GridResult& expected, double tolerance) {
  ASSERT_EQ(actual.steps.size(), expected.steps.size());
  for (size_t i = 0; i < expected.steps.size(); ++i) {
    const StepResult &a = actual.steps[i], &e = expected.steps[i];
    EXPECT_EQ(a.valid_tokens, e.valid_tokens);
    EXPECT_NEAR(a.loss, e.loss, tolerance * e.loss) << "step " << i + 1;
    EXPECT_NEAR(a.gradient_norm, e.gradient_norm, 10 * tolerance * e.gradient_norm) << "step " << i + 1;
  }
  ASSERT_EQ(actual.state.size(), expected.state.size());
  for (const auto& [name, values] : expected.state) {
    const std::vector<float>& other = actual.state.at(name);
    ASSERT_EQ(other.size(), values.size()) << name;
    float largest = 0, worst = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::abs(values[i]));
      worst = std::max(worst, std::abs(values[i] - other[i]));
    }
    EXPECT_LE(worst, 100 * tolerance * static_cast<double>(largest) + 1e-6) << name;
  }
}

TEST(TensorParallel, LearnsWhatOneRankLearns) {
  for (const auto architecture :
       {Architecture::kLlama, Architecture::kQwen2, Architecture::kQwen3, Architecture::kGpt2})
    for (const bool tied : {true, false}) {
      GridPlan plan = plan_of(architecture, tied);
      const GridResult one = run_grid(plan);
      EXPECT_GT(one.steps.front().gradient_norm, 1e-3);
      for (const int size : {2, 4})
        for (const bool sequence : {false, true}) {
          SCOPED_TRACE(
              fmt::format("{} tied {} size {} sequence {}", name_of(architecture), tied, size, sequence));
          plan.tensor_ranks = size;
          plan.sequence_parallel = sequence;
          const GridResult cut = run_grid(plan);
          EXPECT_NE(cut.plan, one.plan);
          expect_close(cut, one, 1e-5);
        }
    }
}

TEST(TensorParallel, OneSizeHasTheSameBitsForEveryPipelineDegree) {
  for (const auto architecture : {Architecture::kQwen3, Architecture::kGpt2})
    for (const bool tied : {true, false})
      for (const bool sequence : {false, true}) {
        GridPlan plan = plan_of(architecture, tied);
        plan.tensor_ranks = 2;
        plan.sequence_parallel = sequence;
        const GridResult flat = run_grid(plan);
        plan.stages = 2;
        expect_same_bits(flat, run_grid(plan));
        plan.stages = 5;
        expect_same_bits(flat, run_grid(plan));
      }
}

TEST(TensorParallel, WithReplicasAndStages) {
  GridPlan plan = plan_of(Architecture::kQwen2);
  plan.replicas = 2;
  const GridResult one = run_grid(plan);
  plan.tensor_ranks = 2;
  const GridResult cut = run_grid(plan);
  expect_close(cut, one, 1e-5);
  plan.stages = 2;
  const GridResult grid = run_grid(plan);
  expect_same_bits(cut, grid);
  // By rank: both stages hold the tied embedding, cut in two, on both replicas.
  ASSERT_EQ(grid.tied_copies.size(), 8u);
  for (size_t r = 0; r < grid.tied_copies.size(); ++r)
    EXPECT_EQ(grid.tied_copies[r], grid.tied_copies[r % 2]);
  EXPECT_NE(grid.tied_copies[0], grid.tied_copies[1]);
}

TEST(TensorParallel, PoliciesThreadsAndDelaysKeepTheBits) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    GridPlan plan = plan_of();
    plan.dtype = dtype;
    plan.tensor_ranks = 2;
    const GridResult full = run_grid(plan);
    plan.threads = 2;
    plan.stages = 2;
    plan.activation = ActivationPolicy::kCheckpoint;
    plan.network = {Delivery::kRendezvous, {3, std::chrono::microseconds(100)}};
    expect_same_bits(full, run_grid(plan));
  }
}

TEST(TensorParallel, ZeroStagesAndPassesKeepTheBits) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    GridPlan plan = plan_of(Architecture::kGpt2);
    plan.dtype = dtype;
    plan.tensor_ranks = 2;
    plan.replicas = 2;
    plan.passes = {};
    const GridResult plain = run_grid(plan);
    plan.activation = ActivationPolicy::kCheckpoint;
    testing::Thinning thinning;
    for (const int stages : {1, 2})
      for (const int zero : {0, 1, 2, 3})
        for (const bool passes : {false, true}) {
          SCOPED_TRACE(fmt::format("{} stages {} zero {} passes {}", name_of(dtype), stages, zero, passes));
          if (thinning.skips()) continue;
          plan.stages = stages;
          plan.zero_stage = zero;
          plan.passes = passes ? pass_names() : std::vector<std::string>{};
          plan.network = {Delivery::kRendezvous, {uint64_t(zero + 1), std::chrono::microseconds(50)}};
          expect_same_bits(plain, run_grid(plan));
        }
  }
}

TEST(TensorParallel, ReproducibleGroupHidesTheNumberOfReplicas) {
  GridPlan plan = plan_of();
  plan.tensor_ranks = 2;
  plan.reproducible_group = 2;
  const GridResult one = run_grid(plan);
  plan.replicas = 2;
  expect_same_bits(one, run_grid(plan));
}

TEST(TensorParallel, Bf16IsCloseToOneRank) {
  GridPlan plan = plan_of();
  plan.dtype = DType::kBF16;
  const GridResult one = run_grid(plan);
  plan.tensor_ranks = 2;
  expect_close(run_grid(plan), one, 1e-2);
}

// Weights that one rank reads from a Hugging Face folder; the projections of GPT-2 lie there transposed, q, k
// and v in one matrix.
TEST(TensorParallel, ReadsItsPartOfAHuggingFaceFolder) {
  for (const auto architecture : {Architecture::kGpt2, Architecture::kLlama}) {
    const TestFolder folder;
    GridPlan plan = plan_of(architecture, false);
    const SyntheticWeights source(model_config_to_hugging_face(plan.model));
    save_hugging_face(source, parameters_of(source), folder / "model", {});
    std::mutex mutex;
    std::map<std::string, std::vector<float>> read;
    plan.prepare = [&](TrainingRank& rank, int) {
      rank.initialize_from(HuggingFaceFolder(folder / "model"));
      const std::lock_guard lock(mutex);
      for (int l = 0; l < rank.model().layer_count(); ++l)
        for (const ParameterSpec& p : rank.model().layer(l).parameters())
          testing::put(read[p.name], p, rank.parameter(p.name));
    };
    plan.tensor_ranks = 4;
    plan.steps = 1;
    run_grid(plan);
    testing::require_whole(read);
    for (const ParameterSpec& p : parameters_of(source)) {
      const std::vector<float>& values = read.at(p.name);
      ASSERT_EQ(std::ssize(values), p.count()) << p.name;
      for (int64_t i = 0; i < p.count(); ++i)
        ASSERT_EQ(values[static_cast<size_t>(i)], SyntheticWeights::value(p.name, i)) << p.name << " " << i;
    }
  }
}

TEST(TensorParallel, EvaluationCountsEveryTokenOnce) {
  std::vector<ClassifierResult> results;
  for (const int size : {1, 2, 4}) {
    GridPlan plan = plan_of();
    plan.tensor_ranks = size;
    plan.stages = 2;
    const Config config = testing::grid_config(plan);
    const auto train = testing::grid_data(plan);
    const auto valid = std::make_shared<testing::InventedSource>(12, plan.model.vocabulary_size, 21);
    auto communicators = make_in_process_group(plan.world());
    std::vector<ClassifierResult> of_ranks(communicators.size());
    {
      std::vector<std::jthread> threads;
      for (size_t r = 0; r < communicators.size(); ++r)
        threads.emplace_back([&, r] {
          TrainingRank rank(config, plan.model, make_host_kernels(1), *communicators[r], train, valid);
          rank.allocate();
          rank.initialize_random();
          of_ranks[r] = rank.evaluate(0);
        });
    }
    for (const auto& result : of_ranks) EXPECT_EQ(result.loss_sum, of_ranks[0].loss_sum);
    results.push_back(of_ranks[0]);
  }
  EXPECT_GT(results[0].valid_tokens, 100);
  for (const auto& result : results) {
    EXPECT_EQ(result.valid_tokens, results[0].valid_tokens);
    EXPECT_NEAR(result.loss_sum, results[0].loss_sum, 1e-5 * results[0].loss_sum);
  }
}

}  // namespace
}  // namespace trainer
