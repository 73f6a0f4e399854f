// A whole grid of ranks in this process, training a tiny model on invented data: what plans are compared
// with.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "app/training_rank.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/philox.h"
#include "comm/in_process.h"
#include "runtime/serial_interpreter.h"
#include "schedule/passes.h"

namespace trainer::testing {

// Tokens by a counter; some labels are ignored, and sample 5 of every 7 has none.
class InventedSource : public SampleSource {
 public:
  InventedSource(int64_t sequence, int64_t vocabulary, int64_t size)
      : sequence_(sequence), vocabulary_(vocabulary), size_(size) {}
  int64_t size() const override { return size_; }
  int64_t sequence_length() const override { return sequence_; }
  void fetch(int64_t index, Sample& s) const override {
    const auto n = static_cast<size_t>(sequence_);
    s.tokens.resize(n);
    s.labels.resize(n);
    s.positions.resize(n);
    s.document_starts.clear();
    s.valid_tokens = 0;
    const Philox random(static_cast<uint64_t>(index));
    for (size_t i = 0; i < n; ++i) {
      const auto token = [&](size_t at) {
        return static_cast<int32_t>(random.block(at)[0] % static_cast<uint32_t>(vocabulary_));
      };
      s.tokens[i] = token(i);
      s.labels[i] = index % 7 == 5 || i % 5 == 3 ? kIgnoredLabel : token(i + 1);
      s.positions[i] = static_cast<int32_t>(i);
      s.valid_tokens += s.labels[i] != kIgnoredLabel;
    }
  }
  int64_t valid_tokens(int64_t index) const override {
    Sample s;
    fetch(index, s);
    return s.valid_tokens;
  }
  uint64_t fingerprint() const override { return 77; }

 private:
  int64_t sequence_, vocabulary_, size_;
};

inline ModelConfig tiny_model(Architecture architecture = Architecture::kLlama, bool tied = true) {
  ModelConfig m;
  m.architecture = architecture;
  m.vocabulary_size = 61;
  m.hidden_size = 16;
  m.num_layers = 5;
  m.num_attention_heads = 4;
  m.num_query_groups = architecture == Architecture::kGpt2 ? 4 : 2;
  m.head_dim = 4;
  m.ffn_hidden_size = 24;
  m.max_position_embeddings = 32;
  m.tie_word_embeddings = tied;
  m.qkv_bias = architecture == Architecture::kQwen2 || architecture == Architecture::kGpt2;
  m.output_bias = m.mlp_bias = architecture == Architecture::kGpt2;
  m.init_std = 0.3;  // tiny widths need it for gradients that matter
  return m;
}

struct GridPlan {
  int stages = 1, replicas = 1, micro_batches = 4;  // micro_batches: of the whole global batch
  int tensor_ranks = 1;
  bool sequence_parallel = true;
  int world() const { return stages * replicas * tensor_ranks; }
  int micro_batch_size = 2;
  std::vector<int64_t> stage_layers;  // empty: even
  int reproducible_group = 0;
  ActivationPolicy activation = ActivationPolicy::kFullSave;
  bool last_stage_keeps = true;
  int recovery_buffers = 0;
  std::vector<std::string> passes = pass_names();
  int zero_stage = 0;
  bool shard_gradients = false;
  bool skip_non_finite = true;
  int max_consecutive_skips = 3;
  int64_t memory_budget = 0;
  DType dtype = DType::kF32;
  int threads = 1;
  int steps = 3;
  double clip = 1.0, weight_decay = 0.1, adam_eps = 1e-8;
  ModelConfig model = tiny_model();
  InProcessOptions network;
  std::shared_ptr<const SampleSource> data;         // null: invented
  std::function<RankBackend()> backend;             // of a rank; null: the host's
  std::function<void(TrainingRank&, int)> prepare;  // of each rank, once it is initialised
};

struct GridResult {
  std::vector<StepResult> steps;
  std::map<std::string, std::vector<float>> weights;  // by parameter name
  std::vector<std::vector<float>> tied_copies;        // of every rank that holds the embedding
  std::map<std::string, std::vector<float>> state;    // by name in a checkpoint: parameters and moments
  uint64_t plan = 0;                                  // hash of the problem
  uint64_t program = 0;  // of the programs of all ranks, without the names of their passes
};

inline std::string describe(const GridPlan& plan) {
  return fmt::format("P {} D {} T {} M {} group {} zero {}{} activation {} passes {}", plan.stages,
                     plan.replicas, plan.tensor_ranks, plan.micro_batches, plan.reproducible_group,
                     plan.zero_stage, plan.shard_gradients ? " sharded" : "",
                     static_cast<int>(plan.activation), fmt::join(plan.passes, ","));
}

// Losses, norms, parameters and moments.
inline void expect_same_bits(const GridResult& a, const GridResult& b) {
  ASSERT_EQ(a.steps.size(), b.steps.size());
  for (size_t i = 0; i < a.steps.size(); ++i) {
    EXPECT_EQ(a.steps[i].loss, b.steps[i].loss) << "step " << i + 1;
    EXPECT_EQ(a.steps[i].gradient_norm, b.steps[i].gradient_norm) << "step " << i + 1;
    EXPECT_EQ(a.steps[i].valid_tokens, b.steps[i].valid_tokens) << "step " << i + 1;
  }
  ASSERT_EQ(a.state.size(), b.state.size());
  for (const auto& [name, values] : a.state) EXPECT_EQ(values, b.state.at(name)) << name;
}

inline Config grid_config(const GridPlan& plan) {
  Config c;
  c.training.micro_batch_size = plan.micro_batch_size;
  c.training.global_batch_size = int64_t{plan.micro_batch_size} * plan.micro_batches;
  c.training.steps = plan.steps;
  c.training.seed = 5;
  c.data.sequence_length = 12;
  c.parallel.pipeline_parallel_size = plan.stages;
  c.parallel.data_parallel_size = plan.replicas;
  c.parallel.tensor_parallel_size = plan.tensor_ranks;
  c.parallel.sequence_parallel = plan.sequence_parallel;
  c.parallel.stage_layers =
      plan.stage_layers.empty() ? even_stage_layers(plan.model.num_layers, plan.stages) : plan.stage_layers;
  c.parallel.reproducible_group = plan.reproducible_group;
  c.schedule.activation = plan.activation;
  c.schedule.last_stage_keeps = plan.last_stage_keeps;
  c.schedule.recovery_buffers = plan.recovery_buffers;
  c.schedule.passes = plan.passes;
  c.parallel.zero_stage = plan.zero_stage;
  c.parallel.shard_gradients = plan.shard_gradients;
  c.optimizer.skip_non_finite = plan.skip_non_finite;
  c.optimizer.max_consecutive_skips = plan.max_consecutive_skips;
  c.device.memory_budget.bytes = plan.memory_budget;
  c.precision.compute = plan.dtype;
  c.optimizer.lr = 0.02;
  c.optimizer.lr_decay_style = LrDecayStyle::kConstant;
  c.optimizer.lr_decay_steps = 100;
  c.optimizer.clip_grad = plan.clip;
  c.optimizer.weight_decay = plan.weight_decay;
  c.optimizer.adam_eps = plan.adam_eps;
  c.device.threads = plan.threads;
  return c;
}

inline std::shared_ptr<const SampleSource> grid_data(const GridPlan& plan) {
  if (plan.data) return plan.data;
  return std::make_shared<InventedSource>(12, plan.model.vocabulary_size, 4096);
}

// What stands where no rank has put anything: a NaN that no arithmetic gives.
inline constexpr uint32_t kUnset = 0xFFFFABCD;

// Elements held by one rank into the whole tensor.
inline void put(std::vector<float>& whole, const ParameterSpec& p, const float* held) {
  whole.resize(static_cast<size_t>(p.logical_count()), std::bit_cast<float>(kUnset));
  for_each_held_run(p, [&](int64_t to, int64_t from, int64_t count) {
    std::copy_n(held + from, count, whole.begin() + to);
  });
}

inline void add_to_state(std::vector<float>& whole, const PartTensor& t) {
  size_t count = 1;
  for (int64_t n : t.slice.shape) count *= static_cast<size_t>(n);
  whole.resize(count, std::bit_cast<float>(kUnset));
  const SliceExtent& extent = t.slice.extent;
  const auto begin = static_cast<size_t>(extent.begin), stride = static_cast<size_t>(extent.stride),
             run = static_cast<size_t>(extent.length());
  for (size_t i = 0; i < t.values.size(); ++i) whole[begin + i / run * stride + i % run] = t.values[i];
}

// The whole of every parameter and moment, from the parts that the ranks would save.
inline void collect_state(TrainingRank& rank, GridResult& result) {
  for (const PartTensor& t : rank.checkpoint_tensors()) add_to_state(result.state[t.slice.name], t);
}

// Throws when an element was put by nobody.
inline void require_whole(const std::map<std::string, std::vector<float>>& tensors) {
  for (const auto& [name, values] : tensors)
    for (size_t i = 0; i < values.size(); ++i)
      require(std::bit_cast<uint32_t>(values[i]) != kUnset, "{}: no rank has element {}", name, i);
}

inline void collect_tied_copies(const TrainingRank& rank, const GridPlan& plan, GridResult& result) {
  if (!plan.model.tie_word_embeddings) return;
  const ParameterSpec& table = rank.model().layer(0).parameters().front();
  if (auto values = rank.parameter_values(table.name)) result.tied_copies.push_back(*std::move(values));
}

// Each rank on a thread of its own, through the stage runtime.
inline GridResult run_grid(const GridPlan& plan) {
  const Config config = grid_config(plan);
  const auto data = grid_data(plan);
  const int world = plan.world();
  auto communicators = make_in_process_group(world, plan.network);
  std::vector<std::unique_ptr<TrainingRank>> ranks(static_cast<size_t>(world));
  GridResult result;
  std::vector<std::exception_ptr> errors(static_cast<size_t>(world));
  {
    std::vector<std::jthread> threads;
    for (int r = 0; r < world; ++r)
      threads.emplace_back([&, r] {
        const auto i = static_cast<size_t>(r);
        try {
          ranks[i] = std::make_unique<TrainingRank>(
              config, plan.model,
              plan.backend ? plan.backend() : RankBackend(make_host_kernels(plan.threads)), *communicators[i],
              data, nullptr);
          ranks[i]->allocate();
          ranks[i]->initialize_random();
          if (plan.prepare) plan.prepare(*ranks[i], r);
          ranks[i]->run(1, plan.steps, nullptr);
        } catch (const std::exception& error) {
          errors[i] = std::current_exception();
          communicators[i]->abort(error.what());
        }
      });
  }
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
  for (int s = 1; s <= plan.steps; ++s)
    for (size_t r = 0; r < ranks.size(); ++r) {
      const StepResult step = ranks[r]->take_result(s);
      if (r == 0) result.steps.push_back(step);
    }
  for (auto& rank : ranks) {
    collect_state(*rank, result);
    collect_tied_copies(*rank, plan, result);
  }
  require_whole(result.state);
  for (int l = 0; l < ranks[0]->model().layer_count(); ++l)
    for (const ParameterSpec& p : ranks[0]->model().layer(l).parameters())
      result.weights[p.name] = result.state.at(p.name);
  result.plan = ranks[0]->problem().hash();
  Hasher programs;
  for (const auto& rank : ranks) {
    StepGraph graph = rank->graph();
    graph.provenance.clear();
    programs.add(graph.hash());
  }
  result.program = programs.value();
  return result;
}

}  // namespace trainer::testing
