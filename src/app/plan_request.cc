#include "app/plan_request.h"

#include <filesystem>

#include "app/kernels.h"
#include "app/training_rank.h"
#include "base/error.h"
#include "data/tokenizer.h"
#include "model/tensor_part.h"
#include "ops/kernel_set.h"
#include "runtime/tensor_communicator.h"

namespace trainer {
namespace {

// Kernels that size the workspace alone, for the threads that the config names: those of this machine have no
// say. A GPU's need the GPU, and about as much as the host's.
std::unique_ptr<KernelSet> sizing_kernels(DeviceSection device) {
  if (device.kind == DeviceKind::kCuda) device.kind = DeviceKind::kHost;
  device.threads = std::max<int64_t>(device.threads, 1);
  return make_kernels(device);
}

}  // namespace

ModelConfig planned_model_from_hugging_face(const Json& json, const std::string& where) {
  if (!is_planned_only(json, where)) return model_config_from_hugging_face(json, where);
  // A Llama block with one key/value head per query head; ALiBi instead of rotary positions has no weights.
  Json llama = json;
  llama["model_type"] = "llama";
  llama["architectures"] = {"LlamaForCausalLM"};
  llama["num_key_value_heads"] = json_integer(json, "num_attention_heads", where);
  llama["max_position_embeddings"] = json_integer(json, "model_max_length", where);
  return model_config_from_hugging_face(llama, where);
}

ModelConfig make_planned_model(const Config& config) {
  if (!config.model.hugging_face.empty()) {
    const std::string file = hugging_face_file(config);
    return planned_model_from_hugging_face(parse_json_file(file), file);
  }
  int64_t vocabulary = 0;
  if (config.model.vocabulary_size == 0 && !config.data.tokenizer.empty())
    vocabulary = load_tokenizer(config.data.tokenizer)->vocabulary_size();
  return make_model_config(config, vocabulary);
}

std::function<PlanModel(int, int64_t)> catalogue_source(const ModelConfig& model, int64_t sequence_length,
                                                        DType dtype,
                                                        std::shared_ptr<const KernelSet> kernels) {
  return [=](int tensor_ranks, int64_t micro_batch_size) {
    const int64_t tokens = micro_batch_size * sequence_length;
    if (tokens % tensor_ranks != 0)
      input_error("{} tokens of a micro-batch over {} tensor-parallel ranks", tokens, tensor_ranks);
    const Model cut(model, sequence_length, {tensor_ranks, 0, tensor_ranks > 1});
    PlanModel result;
    for (int l = 0; l < cut.layer_count(); ++l)
      result.layers.push_back(cut.layer(l).catalogue(micro_batch_size, sequence_length, dtype));
    if (kernels) {
      result.workspace_bytes = static_cast<int64_t>(
          kernels->workspace_bytes(cut.workspace_shape(micro_batch_size, sequence_length, dtype)));
      result.tensor_staging_bytes = TensorCommunicator::staging_bytes(tensor_ranks);
    }
    return result;
  };
}

PlanRequest make_plan_request(const Config& config, const ModelConfig& model, int devices,
                              int64_t memory_budget) {
  if (config.parallel.reproducible_group > 0)
    input_error(
        "'parallel.reproducible_group' fixes how gradients are summed, and with it the plan; set it to 0 to "
        "have one searched");
  PlanRequest request;
  request.devices = devices;
  request.global_batch_size = config.training.global_batch_size;
  request.sequence_length = config.data.sequence_length;
  request.element_bytes = static_cast<int64_t>(size_of(config.precision.compute));
  request.memory_budget = memory_budget;
  request.updates_wait_for_norm = config.optimizer.clip_grad > 0 || config.optimizer.skip_non_finite;
  for (const std::string& pass : config.schedule.passes)
    if (!is_chosen_among(pass)) request.other_passes.push_back(pass);
  request.model = catalogue_source(model, config.data.sequence_length, config.precision.compute,
                                   sizing_kernels(config.device));
  return request;
}

Problem planned_problem(Config config, const ModelConfig& model, int devices) {
  resolve_parallel(config, model, devices);
  return make_problem(config, Model(model, config.data.sequence_length, tensor_part(config, 0)),
                      *sizing_kernels(config.device), {});
}

PlanChoice choice_of(const Config& config, const ModelConfig& model, int devices) {
  Config resolved = config;
  resolve_parallel(resolved, model, devices);
  PlanChoice choice;
  choice.stages = static_cast<int>(resolved.parallel.pipeline_parallel_size);
  choice.replicas = static_cast<int>(resolved.parallel.data_parallel_size);
  choice.tensor_ranks = static_cast<int>(resolved.parallel.tensor_parallel_size);
  choice.zero_stage = static_cast<int>(resolved.parallel.zero_stage);
  choice.shard_gradients = resolved.parallel.shard_gradients;
  choice.micro_batch_size = resolved.training.micro_batch_size;
  choice.micro_batches =
      static_cast<int>(resolved.training.global_batch_size / (choice.micro_batch_size * choice.replicas));
  choice.activation = resolved.schedule.activation;
  choice.recovery_buffers = static_cast<int>(resolved.schedule.recovery_buffers);
  choice.passes = resolved.schedule.passes;
  choice.stage_layers = resolved.parallel.stage_layers;
  return choice;
}

Config with_plan(Config config, const PlanChoice& choice, int64_t memory_budget) {
  config.parallel.pipeline_parallel_size = choice.stages;
  config.parallel.data_parallel_size = choice.replicas;
  config.parallel.tensor_parallel_size = choice.tensor_ranks;
  config.parallel.sequence_parallel = choice.tensor_ranks > 1;
  config.parallel.stage_layers = choice.stage_layers;
  config.parallel.zero_stage = choice.zero_stage;
  config.parallel.shard_gradients = choice.shard_gradients;
  config.schedule.activation = choice.activation;
  config.schedule.last_stage_keeps = true;
  config.schedule.recovery_buffers = choice.recovery_buffers;
  config.schedule.passes = choice.passes;
  config.training.micro_batch_size = choice.micro_batch_size;
  config.device.memory_budget.bytes = memory_budget;
  return config;
}

}  // namespace trainer
