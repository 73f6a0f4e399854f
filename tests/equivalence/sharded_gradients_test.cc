// Plans whose gradients are summed, or whose updates are made, at other moments than the baseline's.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <functional>

#include "support/model_runner.h"
#include "support/thinning.h"
#include "support/tiny_grid.h"

namespace trainer {
namespace {

using testing::describe;
using testing::GridPlan;
using testing::GridResult;
using testing::run_grid;

// Adds the gradients of terms[low .. high) as the fixed tree over replicas does, into the first.
void tree_of(std::vector<RunResult>& terms, size_t low, size_t high) {
  if (high - low == 1) return;
  const size_t middle = low + std::bit_floor(high - low - 1);
  tree_of(terms, low, middle);
  tree_of(terms, middle, high);
  for (auto& [name, values] : terms[low].gradients)
    for (size_t i = 0; i < values.size(); ++i) values[i] += terms[middle].gradients.at(name)[i];
}

// One thread, no schedule: the gradients of each micro-batch are summed over the replicas, then added to
// those before it.
std::map<std::string, std::vector<float>> train_plainly(const GridPlan& plan) {
  const Config config = testing::grid_config(plan);
  ModelRunner runner(plan.model, make_host_kernels(1), DType::kF32);
  runner.set_weights([&](const ParameterSpec& spec, std::span<float> values) {
    initialize_parameter(spec, static_cast<uint64_t>(config.training.seed), 0, values);
  });
  std::vector<std::unique_ptr<SampledInputs>> inputs;
  for (int r = 0; r < plan.replicas; ++r)
    inputs.push_back(std::make_unique<SampledInputs>(
        testing::grid_data(plan),
        InputShape{config.training.micro_batch_size, config.training.global_batch_size, plan.replicas, {r}}));
  std::map<std::string, std::array<std::vector<float>, 2>> moments;
  std::map<std::string, std::vector<float>> weights;
  const OptimizerSettings o = make_optimizer_settings(config);
  for (int step = 1; step <= plan.steps; ++step) {
    std::map<std::string, std::vector<float>> sums;
    int64_t valid = 0;
    for (int m = 0; m < plan.micro_batches / plan.replicas; ++m) {
      std::vector<RunResult> terms;
      for (auto& replica : inputs) {
        const BatchView view = replica->micro_batch(step, m);
        const auto n = static_cast<size_t>(view.micro_batch * view.sequence);
        terms.push_back(runner.run(make_batch(view.micro_batch, view.sequence, {view.tokens, view.tokens + n},
                                              {view.labels, view.labels + n})));
        valid += terms.back().valid_tokens;
      }
      tree_of(terms, 0, terms.size());
      for (const auto& [name, values] : terms[0].gradients) {
        const auto [sum, first] = sums.try_emplace(name, values);
        for (size_t i = 0; i < values.size() && !first; ++i) sum->second[i] += values[i];
      }
    }
    for (int l = 0; l < runner.model().layer_count(); ++l)
      for (const ParameterSpec& p : runner.model().layer(l).parameters()) {
        auto& [moment1, moment2] = moments[p.name];
        moment1.resize(static_cast<size_t>(p.count()));
        moment2.resize(static_cast<size_t>(p.count()));
        AdamW a{};
        a.count = p.count();
        a.master = runner.weight(p.name).data();
        a.moment1 = moment1.data();
        a.moment2 = moment2.data();
        a.gradient = sums.at(p.name).data();
        a.gradient_scale = static_cast<float>(1.0 / static_cast<double>(valid));
        a.learning_rate = static_cast<float>(learning_rate(o.schedule, step - 1));
        a.beta1 = static_cast<float>(o.beta1);
        a.beta2 = static_cast<float>(o.beta2);
        a.epsilon = static_cast<float>(o.epsilon);
        a.weight_decay = p.decays() ? static_cast<float>(o.weight_decay) : 0;
        a.step = step;
        runner.kernels().adamw(a);
        weights[p.name].assign(a.master, a.master + a.count);
      }
  }
  return weights;
}

// Runs the plan with one stage and two, ZeRO 2 and 3, no passes and all.
void run_variants(GridPlan plan, const std::function<void(const GridResult&)>& check) {
  plan.activation = ActivationPolicy::kCheckpoint;
  static testing::Thinning thinning;  // over the calls
  for (int stages : {1, 2})
    for (int zero : {2, 3})
      for (const auto& passes : {std::vector<std::string>{}, pass_names()}) {
        if (thinning.skips()) continue;
        plan.stages = stages;
        plan.zero_stage = zero;
        plan.passes = passes;
        SCOPED_TRACE(describe(plan));
        check(run_grid(plan));
      }
}

TEST(ShardedGradients, AreSummedOverReplicasThenOverMicroBatches) {
  for (int replicas : {2, 4}) {
    GridPlan plan;
    plan.model = testing::tiny_model(Architecture::kLlama, false);
    plan.replicas = replicas;
    plan.micro_batches = 3 * replicas;
    plan.clip = 0;
    plan.skip_non_finite = false;
    const auto expected = train_plainly(plan);
    plan.passes = {};
    EXPECT_NE(run_grid(plan).weights, expected) << "the usual order of sums is another one";
    plan.shard_gradients = true;
    run_variants(plan, [&](const GridResult& result) {
      for (const auto& [name, values] : expected) ASSERT_EQ(result.weights.at(name), values) << name;
    });
  }
}

// In a reproducible group they are what every other plan of the group learns, with any number of replicas.
TEST(ShardedGradients, AreThoseOfTheReproducibleGroup) {
  for (const auto& [micro_batches, group] : {std::pair{4, 4}, {8, 4}, {8, 8}, {16, 16}}) {
    GridPlan plan;
    plan.steps = 2;
    plan.micro_batches = micro_batches;
    plan.reproducible_group = group;
    plan.passes = {};
    const GridResult expected = run_grid(plan);
    for (int replicas : {2, 4})
      for (bool shards : {false, true}) {
        plan.replicas = replicas;
        plan.shard_gradients = shards;
        run_variants(plan, [&](const GridResult& result) { testing::expect_same_bits(result, expected); });
      }
    plan.shard_gradients = true;
    plan.zero_stage = 2;
    // Without the group, a rank's micro-batches are added in turn; two of them are so in any case.
    plan.reproducible_group = 0;
    plan.replicas = 2;
    EXPECT_EQ(run_grid(plan).weights == expected.weights, micro_batches == 4);
  }
}

// Each virtual rank's gradient of a layer is summed over the replicas once, and no rank keeps it whole.
TEST(ShardedGradients, OfAGroupAreSummedOnceForEachVirtualRank) {
  GridPlan plan;
  plan.micro_batches = 16;
  plan.replicas = 2;
  plan.reproducible_group = 8;
  plan.zero_stage = 2;
  plan.passes = {};
  const auto program = [&](bool shards) {
    plan.shard_gradients = shards;
    Config config = testing::grid_config(plan);
    const Model model(plan.model, config.data.sequence_length);
    return build_step_graph(make_problem(config, model, *make_host_kernels(1), {0}));
  };
  const StepGraph whole = program(false), sharded = program(true);
  const auto sums = [](const StepGraph& graph, int layer) {
    return std::count_if(graph.tasks.begin(), graph.tasks.end(), [&](const Task& t) {
      return t.kind == TaskKind::kGradSync && t.communicator == kDataParallel && t.at.layer_begin == layer;
    });
  };
  EXPECT_EQ(sums(whole, 2), 1);
  EXPECT_EQ(sums(sharded, 2), 4);
}

// Tied, with clipping: the same bits wherever the stages are cut.
TEST(ShardedGradients, DoNotDependOnStagesOrPasses) {
  GridPlan plan;
  plan.replicas = 2;
  plan.micro_batches = 6;
  plan.steps = 2;
  plan.zero_stage = 2;
  plan.shard_gradients = true;
  plan.passes = {};
  const GridResult baseline = run_grid(plan);
  plan.activation = ActivationPolicy::kSelective;
  plan.last_stage_keeps = false;
  for (int stages : {1, 2, 4})
    for (int zero : {2, 3})
      for (const auto& passes : {std::vector<std::string>{}, pass_names()}) {
        plan.stages = stages;
        plan.zero_stage = zero;
        plan.passes = passes;
        SCOPED_TRACE(describe(plan));
        const GridResult result = run_grid(plan);
        EXPECT_EQ(result.steps.back().loss, baseline.steps.back().loss);
        EXPECT_EQ(result.steps.back().gradient_norm, baseline.steps.back().gradient_norm);
        ASSERT_EQ(result.state, baseline.state);
      }
}

// With neither clipping nor skipping an update needs its own layer's gradient alone. The baseline asks for
// all of them first, and skips nothing.
TEST(ChainedUpdates, LearnTheBitsOfOneBatchOfUpdates) {
  for (int replicas : {1, 2}) {
    GridPlan plan;
    plan.replicas = replicas;
    plan.micro_batches = 6;
    plan.steps = 2;
    plan.clip = 0;
    plan.skip_non_finite = true;
    plan.passes = {};
    const GridResult baseline = run_grid(plan);
    for (const StepResult& step : baseline.steps) ASSERT_FALSE(step.skipped);
    plan.skip_non_finite = false;
    plan.activation = ActivationPolicy::kCheckpoint;
    testing::Thinning thinning;
    for (int stages : {1, 2, 4}) {
      std::vector<std::vector<std::string>> lists{{}, pass_names()};
      for (const std::string& name : pass_names())
        if (stages == 2) lists.push_back({name});
      for (int zero = 0; zero <= (replicas > 1 ? 3 : 0); ++zero)
        for (const auto& passes : lists) {
          if (thinning.skips()) continue;
          plan.stages = stages;
          plan.zero_stage = zero;
          plan.passes = passes;
          SCOPED_TRACE(describe(plan));
          const GridResult result = run_grid(plan);
          for (size_t s = 0; s < baseline.steps.size(); ++s) {
            EXPECT_EQ(result.steps[s].loss, baseline.steps[s].loss);
            EXPECT_EQ(result.steps[s].gradient_norm, baseline.steps[s].gradient_norm);
          }
          ASSERT_EQ(result.state, baseline.state);
        }
    }
  }
}

}  // namespace
}  // namespace trainer
