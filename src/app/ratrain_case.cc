#include "app/ratrain_case.h"

#include <fmt/core.h>

#include <algorithm>

#include "app/plan_request.h"
#include "schedule/activation_policy.h"

namespace trainer {
namespace {

constexpr int64_t kSequence = 2048;
constexpr int64_t kBudget = int64_t{20} << 30;

std::vector<std::string> passes_of(RatrainMethod method) {
  switch (method) {
    case RatrainMethod::kFull:
      return {"forward_side_recovery", "layer_state_pipeline", "update_prefetch"};
    case RatrainMethod::kBackwardCheckpoint:
    case RatrainMethod::kNoRecoveryAhead:
    case RatrainMethod::kFullSave:
      return {"layer_state_pipeline", "update_prefetch"};
    case RatrainMethod::kTuned:
      return {};
    case RatrainMethod::kGatheredOnce:
    case RatrainMethod::kNoUpdatePrefetch:
      return {"forward_side_recovery", "layer_state_pipeline"};
    case RatrainMethod::kNoLayerStatePipeline:
      return {"forward_side_recovery", "update_prefetch"};
  }
  return {};
}

// Stages with as equal memory as can be, from what they need with the average number of blocks and one more.
std::vector<int64_t> even_in_memory(Problem problem) {
  const auto stages = static_cast<size_t>(problem.stages);
  const int64_t blocks = problem.layer_count() - 2, average = blocks / problem.stages;
  problem.kept.assign(problem.layers.size(), ~uint64_t{0});
  std::fill(problem.kept.begin() + 1, problem.kept.end() - 1, 0);
  std::vector<double> base(stages), each(stages);
  for (size_t s = 0; s < stages; ++s) {
    const auto bytes = [&](int64_t count) {
      std::vector<int64_t> layers(stages, 1);
      layers[s] = count;
      layers[s == 0 ? stages - 1 : 0] += blocks - count - static_cast<int64_t>(stages) + 1;
      problem.first_layer = first_layers(layers);
      return static_cast<double>(stage_memory(problem, static_cast<int>(s)).in_use());
    };
    each[s] = bytes(average + 1) - bytes(average);
    base[s] = bytes(average) - static_cast<double>(average) * each[s];
  }
  return balanced_stage_layers(blocks, base, each);
}

std::vector<int64_t> even_in_time(const PlanModel& model, int stages) {
  const auto flops = [&](size_t l) { return model.layers[l].forward_flops + model.layers[l].backward_flops; };
  std::vector<double> base(static_cast<size_t>(stages)), each(base.size(), flops(1));
  base.front() += flops(0);
  base.back() += flops(model.layers.size() - 1);
  return balanced_stage_layers(static_cast<int64_t>(model.layers.size()) - 2, base, each);
}

}  // namespace

const PlanModel& RatrainModel::model(const RatrainCase& c) {
  const auto [it, fresh] = models_.try_emplace({c.model, c.tensor_ranks, c.micro_batch_size});
  if (fresh) it->second = request(c.model, 1, 1, 0).model(c.tensor_ranks, c.micro_batch_size);
  return it->second;
}

PlanRequest RatrainModel::request(const std::string& name, int devices, int64_t batch,
                                  int64_t memory_budget) {
  const std::string file = configs_ + "/models/" + name + ".json";
  const ModelConfig shape = planned_model_from_hugging_face(parse_json_file(file), file);
  PlanRequest request;
  request.devices = devices;
  request.global_batch_size = batch;
  request.sequence_length = kSequence;
  request.memory_budget = memory_budget;
  request.model = catalogue_source(shape, kSequence, DType::kBF16, nullptr);
  return request;
}

Problem RatrainModel::problem(const RatrainCase& c, const std::vector<int64_t>& stage_layers, bool sharded,
                              int64_t gradient_bytes) {
  PlanRequest request;
  PlanChoice choice;
  choice.stages = c.stages;
  choice.replicas = c.replicas;
  choice.zero_stage = c.zero_stage;
  choice.shard_gradients = sharded;
  choice.micro_batches = c.micro_batches;
  choice.micro_batch_size = c.micro_batch_size;
  choice.activation =
      c.method == RatrainMethod::kFullSave ? ActivationPolicy::kFullSave : ActivationPolicy::kCheckpoint;
  // One that a backward reads and one being filled.
  choice.recovery_buffers = 2;
  choice.passes = passes_of(c.method);
  choice.stage_layers = stage_layers;
  // Devices are alone on their nodes, so the ranks of a tensor-parallel group need no numbers: the model's
  // catalogue says what they exchange.
  Problem p = problem_of(request, model(c), choice, false);
  p.gradient_bytes = gradient_bytes;
  if (c.stages > 1 && !p.kept.empty()) {
    Problem held = p;
    held.shard_gradients = c.zero_stage >= 2;
    held.gradient_bytes = 2;
    int64_t others = 0;
    for (int s = 0; s + 1 < c.stages; ++s) others = std::max(others, stage_memory(held, s).in_use());
    for (int l = p.first_layer[static_cast<size_t>(c.stages) - 1]; l < p.layer_count(); ++l)
      held.kept[static_cast<size_t>(l)] = ~uint64_t{0};
    if (stage_memory(held, c.stages - 1).in_use() <= others) p.kept = held.kept;
  }
  return p;
}

Problem RatrainModel::memory_problem(const RatrainCase& c) {
  const auto with = [&](const std::vector<int64_t>& split) {
    return problem(c, split, c.zero_stage >= 2, 2);
  };
  const std::string key = fmt::format("{} {} {} {} {} {} {}", c.model, c.stages, c.replicas, c.tensor_ranks,
                                      c.zero_stage, c.micro_batch_size, c.method == RatrainMethod::kFullSave);
  const auto [it, fresh] = splits_.try_emplace(key);
  if (fresh) {
    it->second = even_in_time(model(c), c.stages);
    const Problem even = with(it->second);
    bool fits = true;
    for (int s = 0; s < c.stages && fits; ++s) fits = stage_memory(even, s).in_use() <= kBudget;
    if (!fits && c.stages > 1) it->second = even_in_memory(even);
  }
  return with(it->second);
}

Problem RatrainModel::timed_problem(const RatrainCase& c, bool sharded) {
  Problem p = memory_problem(c);
  p.shard_gradients = sharded && c.zero_stage >= 2;
  p.gradient_bytes = 4;
  return p;
}

StageMemory RatrainModel::memory(const RatrainCase& c) {
  const Problem p = memory_problem(c);
  StageMemory worst;
  for (int s = 0; s < c.stages; ++s)
    if (const StageMemory memory = stage_memory(p, s); memory.in_use() > worst.in_use()) worst = memory;
  return worst;
}

StepAnalysis RatrainModel::step(const RatrainCase& c, const Platform& platform, bool sharded) {
  return predict_step(timed_problem(c, sharded), platform).step;
}

}  // namespace trainer
