// Faults of training loops, on whole steps of a grid of ranks.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <tuple>

#include "base/error.h"
#include "support/model_runner.h"
#include "support/tiny_grid.h"

namespace trainer {
namespace {

using testing::GridPlan;
using testing::GridResult;
using testing::run_grid;
using State = std::map<std::string, std::vector<float>>;

// Invented tokens; of sample i the first `valid(i)` labels count.
class LabelledSource : public testing::InventedSource {
 public:
  LabelledSource(int64_t vocabulary, std::function<int64_t(int64_t)> valid)
      : InventedSource(12, vocabulary, 4096), valid_(std::move(valid)) {}
  void fetch(int64_t index, Sample& s) const override {
    InventedSource::fetch(index + (index % 7 == 5 ? 1000 : 0), s);
    s.valid_tokens = valid_(index);
    for (int64_t i = 0; i < 12; ++i)
      s.labels[static_cast<size_t>(i)] =
          i < s.valid_tokens ? static_cast<int32_t>((index * 5 + i * 3) % 37) : kIgnoredLabel;
  }
  int64_t valid_tokens(int64_t index) const override { return valid_(index); }

 private:
  std::function<int64_t(int64_t)> valid_;
};

std::shared_ptr<const SampleSource> labelled(std::function<int64_t(int64_t)> valid) {
  return std::make_shared<LabelledSource>(testing::tiny_model().vocabulary_size, std::move(valid));
}

bool same_bytes(const State& a, const State& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [name, values] : a) {
    const auto other = b.find(name);
    if (other == b.end() || other->second.size() != values.size() ||
        std::memcmp(other->second.data(), values.data(), values.size() * 4) != 0)
      return false;
  }
  return true;
}

double norm_of(const State& state, const std::string& suffix, double scale) {
  double squares = 0;
  for (const auto& [name, values] : state)
    if (name.ends_with(suffix))
      for (float v : values) squares += (v * scale) * (v * scale);
  return std::sqrt(squares);
}

GridPlan cut(GridPlan plan, int micro_batch_size, int replicas, int stages) {
  plan.micro_batch_size = micro_batch_size;
  plan.micro_batches = 4 / micro_batch_size;
  plan.replicas = replicas;
  plan.stages = stages;
  return plan;
}

TEST(Cases, UnequalLabelsHoweverTheBatchIsCut) {
  GridPlan plan;
  plan.steps = 2;
  const std::array<int64_t, 4> counts = {12, 1, 5, 0};
  plan.data = labelled([counts](int64_t i) { return counts[static_cast<size_t>(i % 4)]; });

  // The mean over the valid tokens of the whole batch, from each token's loss.
  ModelRunner runner(plan.model, make_reference_kernels(), DType::kF32);
  runner.set_weights(
      [](const ParameterSpec& p, std::span<float> values) { initialize_parameter(p, 5, 0, values); });
  double sum = 0, mean_of_means = 0;
  for (int64_t i = 0; i < 4; ++i) {
    Sample s;
    plan.data->fetch(i, s);
    const RunResult r = runner.run(make_batch(1, 12, s.tokens, s.labels), {.backward = false});
    sum += r.loss_sum;
    if (r.valid_tokens) mean_of_means += r.loss_sum / static_cast<double>(r.valid_tokens) / 3;
  }
  ASSERT_GT(std::abs(sum / 18 - mean_of_means), 1e-2);

  const GridResult whole = run_grid(cut(plan, 4, 1, 1));
  EXPECT_NEAR(whole.steps[0].loss, sum / 18, 1e-5);
  EXPECT_EQ(whole.steps[0].valid_tokens, 18);
  for (const GridPlan& other :
       {cut(plan, 1, 1, 1), cut(plan, 1, 4, 1), cut(plan, 2, 2, 1), cut(plan, 1, 1, 2), cut(plan, 1, 2, 2)}) {
    const GridResult r = run_grid(other);
    for (size_t s = 0; s < 2; ++s) {
      EXPECT_NEAR(r.steps[s].loss, whole.steps[s].loss, s == 0 ? 1e-6 : 1e-4);
      EXPECT_NEAR(r.steps[s].gradient_norm, whole.steps[s].gradient_norm,
                  (s == 0 ? 1e-5 : 1e-3) * whole.steps[s].gradient_norm);
    }
  }
}

TEST(Cases, ARankWithoutLabelsAddsNothing) {
  GridPlan plan;
  plan.replicas = 2;
  plan.micro_batches = 2;
  plan.micro_batch_size = 1;
  plan.steps = 1;
  plan.data = labelled([](int64_t i) { return i % 2 == 0 ? 4 : 0; });
  const GridResult both = run_grid(plan);
  EXPECT_EQ(both.steps[0].valid_tokens, 4);
  EXPECT_FALSE(both.steps[0].skipped);
  plan.replicas = plan.micro_batches = 1;
  const GridResult alone = run_grid(plan);
  EXPECT_EQ(both.steps[0].loss, alone.steps[0].loss);
  EXPECT_EQ(both.steps[0].gradient_norm, alone.steps[0].gradient_norm);
}

TEST(Cases, AStepWithoutLabelsChangesNothing) {
  for (int replicas : {1, 2})
    for (int stages : {1, 2}) {
      GridPlan plan;
      plan.replicas = replicas;
      plan.stages = stages;
      plan.data = labelled([](int64_t i) { return i >= 8 && i < 16 ? 0 : 7; });  // 8 samples a step
      plan.steps = 1;
      const GridResult before = run_grid(plan);
      plan.steps = 2;
      const GridResult after = run_grid(plan);
      EXPECT_TRUE(after.steps[1].skipped);
      EXPECT_EQ(after.steps[1].valid_tokens, 0);
      EXPECT_EQ(after.steps[1].loss, 0);
      EXPECT_TRUE(same_bytes(before.state, after.state));
      plan.steps = 3;
      const GridResult later = run_grid(plan);
      EXPECT_FALSE(later.steps[2].skipped);
      EXPECT_TRUE(std::isfinite(later.steps[2].loss));
      EXPECT_FALSE(same_bytes(before.state, later.state));
    }
}

// The first moments after one step are the clipped gradients times 1 - beta1.
TEST(Cases, ClippingByTheNormOfAllParameters) {
  GridPlan plan;
  plan.steps = 1;
  plan.clip = 0;
  const double norm = run_grid(plan).steps[0].gradient_norm;
  const double unscale = 1 / (1 - 0.9);
  for (const auto& [stages, replicas] : {std::pair{1, 1}, {2, 1}, {1, 2}, {2, 2}, {4, 1}}) {
    plan.stages = stages;
    plan.replicas = replicas;
    plan.clip = norm / 3;
    const GridResult clipped = run_grid(plan);
    EXPECT_NEAR(clipped.steps[0].gradient_norm, norm, 1e-6 * norm);
    EXPECT_NEAR(norm_of(clipped.state, ".moment1", unscale), norm / 3, 1e-4 * norm);
    plan.clip = norm * 3;
    const GridResult free = run_grid(plan);
    EXPECT_NEAR(norm_of(free.state, ".moment1", unscale), norm, 1e-4 * norm);
    plan.clip = 0;
    EXPECT_TRUE(same_bytes(free.state, run_grid(plan).state));
  }
}

TEST(Cases, TiedEmbeddingWithPipelineAndReplicas) {
  GridPlan plan;
  plan.steps = 5;
  plan.micro_batches = 4;
  const GridResult serial = run_grid(plan);
  for (const auto& [stages, replicas] : {std::pair{2, 1}, {1, 2}, {2, 2}}) {
    plan.stages = stages;
    plan.replicas = replicas;
    const GridResult r = run_grid(plan);
    ASSERT_EQ(r.tied_copies.size(), static_cast<size_t>(std::min(stages, 2) * replicas));
    for (const auto& copy : r.tied_copies) {
      EXPECT_EQ(copy, r.tied_copies.front());
      for (size_t i = 0; i < copy.size(); ++i) ASSERT_NEAR(copy[i], serial.tied_copies.front()[i], 2e-3);
    }
    for (size_t s = 0; s < 5; ++s)
      EXPECT_NEAR(r.steps[s].gradient_norm, serial.steps[s].gradient_norm,
                  1e-3 * serial.steps[s].gradient_norm);
    EXPECT_NEAR(r.steps[0].gradient_norm, serial.steps[0].gradient_norm,
                1e-6 * serial.steps[0].gradient_norm);
  }
}

TEST(Cases, ANonFiniteGradientOnOneRankIsSkippedByAll) {
  for (const auto& [stages, replicas, bad_rank] : {std::tuple{1, 2, 1}, {2, 1, 1}, {2, 2, 3}}) {
    GridPlan plan;
    plan.stages = stages;
    plan.replicas = replicas;
    plan.steps = 2;
    std::mutex mutex;
    for (float poison : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      State initial;
      plan.prepare = [&, bad_rank = bad_rank](TrainingRank& rank, int r) {
        const std::lock_guard lock(mutex);
        if (r == bad_rank) {
          const int layer = rank.problem().first_layer[static_cast<size_t>(rank.problem().stage_of(r))];
          const ParameterSpec& p = rank.model().layer(std::max(layer, 1)).parameters().front();
          const_cast<float*>(rank.parameter(p.name))[0] = poison;
        }
        for (const PartTensor& t : rank.checkpoint_tensors())
          initial[t.slice.name] = {t.values.begin(), t.values.end()};
      };
      const GridResult r = run_grid(plan);
      for (const StepResult& step : r.steps) {
        EXPECT_TRUE(step.skipped);
        EXPECT_GT(step.valid_tokens, 0);
      }
      EXPECT_TRUE(same_bytes(r.state, initial));
    }
  }
}

// In the first step every parameter whose gradient is not tiny moves by the learning rate, in whichever layer
// it is: a counter that runs on from layer to layer would move later ones by less.
TEST(Cases, OneStepCounterForAllLayers) {
  GridPlan plan;
  plan.steps = 1;
  plan.weight_decay = 0;
  for (int stages : {1, 3}) {
    plan.stages = stages;
    State initial;
    std::mutex mutex;
    plan.prepare = [&](TrainingRank& rank, int) {
      const std::lock_guard lock(mutex);
      for (const PartTensor& t : rank.checkpoint_tensors())
        initial[t.slice.name] = {t.values.begin(), t.values.end()};
    };
    const GridResult r = run_grid(plan);
    for (const auto& [name, values] : r.weights) {
      double most = 0;
      for (size_t i = 0; i < values.size(); ++i)
        most = std::max<double>(most, std::abs(values[i] - initial.at(name)[i]));
      EXPECT_NEAR(most, 0.02, 1e-4) << name;
    }
  }
}

// With the head all zero no gradient is left: what still moves is decay.
TEST(Cases, WeightDecayTouchesMatricesOnly) {
  for (auto architecture :
       {Architecture::kLlama, Architecture::kQwen2, Architecture::kQwen3, Architecture::kGpt2})
    for (int stages : {1, 2}) {
      GridPlan plan;
      plan.model = testing::tiny_model(architecture, false);
      plan.stages = stages;
      plan.steps = 10;
      std::map<std::string, size_t> dimensions;
      std::mutex mutex;
      plan.prepare = [&](TrainingRank& rank, int) {
        const std::lock_guard lock(mutex);
        for (int l = 0; l < rank.model().layer_count(); ++l)
          for (const ParameterSpec& p : rank.model().layer(l).parameters()) {
            dimensions[p.name] = p.shape.size();
            auto* values = const_cast<float*>(rank.parameter(p.name));
            if (values)
              std::fill(values, values + p.count(), l + 1 == rank.model().layer_count() ? 0.0f : 1.0f);
          }
      };
      const GridResult r = run_grid(plan);
      int matrices = 0, vectors = 0;
      for (const auto& [name, values] : r.weights) {
        if (std::all_of(values.begin(), values.end(), [](float v) { return v == 0; })) continue;  // the head
        const bool matrix = dimensions.at(name) >= 2;
        ++(matrix ? matrices : vectors);
        for (float v : values)
          if (matrix)
            ASSERT_NEAR(v, std::pow(1 - 0.02 * 0.1, 10), 1e-5) << name;
          else
            ASSERT_EQ(v, 1.0f) << name;
      }
      EXPECT_GE(matrices, 5 * 4);
      EXPECT_GE(vectors, 5 * 2);
    }
}

TEST(Cases, FewerMicroBatchesThanStages) {
  for (const auto& [stages, micro_batches] : {std::pair{4, 1}, {4, 2}, {4, 3}, {3, 2}}) {
    GridPlan plan;
    plan.micro_batches = micro_batches;
    plan.steps = 2;
    const GridResult serial = run_grid(plan);
    plan.stages = stages;
    plan.network = {Delivery::kRendezvous, {}};
    const GridResult piped = run_grid(plan);
    EXPECT_EQ(piped.steps[1].loss, serial.steps[1].loss);
    EXPECT_EQ(piped.steps[1].gradient_norm, serial.steps[1].gradient_norm);
  }
}

TEST(Cases, LayersThatStagesDoNotDivideAreAllTrained) {
  GridPlan plan;
  plan.stages = 3;
  plan.micro_batches = 2;
  plan.model.num_layers = 7;
  plan.steps = 1;
  const GridResult piped = run_grid(plan);
  plan.stages = 1;
  const GridResult serial = run_grid(plan);
  EXPECT_TRUE(same_bytes(piped.state, serial.state));
  plan.stages = 8;
  EXPECT_THROW(run_grid(plan), InputError);
}

}  // namespace
}  // namespace trainer
