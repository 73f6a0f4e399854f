#include "app/config_check.h"

#include <bit>
#include <filesystem>
#include <numeric>

#include "base/error.h"
#include "base/json.h"
#include "data/synthetic_source.h"
#include "model/tensor_part.h"

namespace trainer {
namespace {

bool learns_positions(Architecture architecture) { return architecture == Architecture::kGpt2; }
bool has_qkv_bias(Architecture architecture) {
  return architecture == Architecture::kQwen2 || architecture == Architecture::kGpt2;
}

void check_inline_model(const Config& config, const std::string& name) {
  const ModelSection& m = config.model;
  const char* kind = name_of(m.architecture);
  if (m.ffn_hidden_size == 0)
    input_error("{}: key 'model.ffn_hidden_size' is missing; a {} model has no rule for it", name, kind);
  if (m.num_attention_heads % m.num_query_groups != 0)
    input_error(
        "{}: 'model.num_attention_heads' ({}) is not a multiple of 'model.num_query_groups' ({}); "
        "each key/value head serves the same number of query heads",
        name, m.num_attention_heads, m.num_query_groups);
  if (m.kv_channels == 0)
    input_error(
        "{}: 'model.hidden_size' ({}) is not a multiple of 'model.num_attention_heads' ({}); "
        "change one of them or give 'model.kv_channels'",
        name, m.hidden_size, m.num_attention_heads);
  if (learns_positions(m.architecture) && config.data.sequence_length > m.max_position_embeddings)
    input_error(
        "{}: 'data.sequence_length' ({}) is above 'model.max_position_embeddings' ({}), and a {} model has "
        "no position beyond it; lower the one or raise the other",
        name, config.data.sequence_length, m.max_position_embeddings, kind);
  if (m.architecture != Architecture::kLlama && *m.add_qkv_bias != has_qkv_bias(m.architecture))
    input_error(
        "{}: key 'model.add_qkv_bias': a {} model {} these biases; remove the key, or choose "
        "'model.architecture' \"{}\"",
        name, kind, *m.add_qkv_bias ? "does not have" : "always has", *m.add_qkv_bias ? "qwen2" : "llama");
  if (m.rope_scaling && learns_positions(m.architecture))
    input_error("{}: key 'model.rope_scaling': a {} model has no rotary positions; remove the key", name,
                kind);
}

void check_batches(const Config& config, const std::string& name) {
  const auto& t = config.training;
  const auto& p = config.parallel;
  if (t.global_batch_size % t.micro_batch_size != 0)
    input_error(
        "{}: 'training.global_batch_size' ({}) is not a multiple of 'training.micro_batch_size' ({}); "
        "change one of them",
        name, t.global_batch_size, t.micro_batch_size);
  if (p.shard_gradients && p.zero_stage < 2)
    input_error(
        "{}: 'parallel.shard_gradients' needs gradients in shards: set 'parallel.zero_stage' to 2 or 3 (it "
        "is {})",
        name, p.zero_stage);
  if (p.reproducible_group == 0) return;
  if (p.grad_sync == SumAlgorithm::kRing || p.grad_sync == SumAlgorithm::kHierarchical)
    input_error(
        "{}: 'parallel.reproducible_group' sums by one fixed tree: set 'parallel.grad_sync' to direct or "
        "tree",
        name);
  if (!std::has_single_bit(static_cast<uint64_t>(p.reproducible_group)))
    input_error("{}: key 'parallel.reproducible_group': expected a power of two or 0, found {}", name,
                p.reproducible_group);
  if (t.global_batch_size % (t.micro_batch_size * p.reproducible_group) != 0)
    input_error(
        "{}: 'training.global_batch_size' ({}) is not a multiple of 'training.micro_batch_size' x "
        "'parallel.reproducible_group' ({} x {}); each of the group's virtual ranks needs whole "
        "micro-batches",
        name, t.global_batch_size, t.micro_batch_size, p.reproducible_group);
}

void check_stages(const Config& config, const std::string& name) {
  const auto& p = config.parallel;
  if (!p.stage_layers.empty() && std::ssize(p.stage_layers) != p.pipeline_parallel_size)
    input_error("{}: 'parallel.stage_layers' names {} stages, but 'parallel.pipeline_parallel_size' is {}",
                name, p.stage_layers.size(), p.pipeline_parallel_size);
}

void check_device(const Config& config, const std::string& name) {
  if (config.device.kind != DeviceKind::kMt3000Simulated) return;
  if (config.precision.compute != DType::kF32)
    input_error(
        "{}: 'device.kind' is mt3000-sim, whose products round to fp16 themselves: set 'precision.compute' "
        "to "
        "fp32 (it is {})",
        name, name_of(config.precision.compute));
  if (config.parallel.tensor_parallel_size > 1)
    input_error(
        "{}: 'device.kind' is mt3000-sim, which has no layers cut over ranks: set "
        "'parallel.tensor_parallel_size' to 1 (it is {})",
        name, config.parallel.tensor_parallel_size);
}

void check_optimizer(const Config& config, const std::string& name) {
  const auto& o = config.optimizer;
  if (o.min_lr > o.lr)
    input_error("{}: 'optimizer.min_lr' ({}) is above 'optimizer.lr' ({})", name, shortest(o.min_lr),
                shortest(o.lr));
  if (o.wsd_decay_steps > o.lr_decay_steps)
    input_error(
        "{}: 'optimizer.wsd_decay_steps' ({}) is above 'optimizer.lr_decay_steps' ({}); the tail is part of "
        "it",
        name, o.wsd_decay_steps, o.lr_decay_steps);
}

void check_data(const Config& config, const std::string& name) {
  const auto& d = config.data;
  const bool needs_eod = d.eod_mask_loss || d.reset_position_ids || d.document_masking;
  if (needs_eod && d.tokenizer.empty())
    input_error("{}: 'data.{}' needs the end-of-document token; name the tokenizer in 'data.tokenizer'", name,
                d.eod_mask_loss        ? "eod_mask_loss"
                : d.reset_position_ids ? "reset_position_ids"
                                       : "document_masking");
  if (config.model.hugging_face.empty() && config.model.vocabulary_size == 0 && d.tokenizer.empty())
    input_error(
        "{}: the vocabulary's size is unknown; give 'model.vocabulary_size', or name the tokenizer in "
        "'data.tokenizer'",
        name);
  for (const int64_t step : config.run.trace_steps)
    if (step > config.training.steps)
      input_error("{}: 'run.trace_steps' names step {}, but 'training.steps' is {}", name, step,
                  config.training.steps);
}

void check_dataset(const std::string& prefix) {
  for (const char* ending : {".idx", ".bin"})
    if (!std::filesystem::exists(prefix + ending))
      input_error(
          "key 'data.data_path': '{}{}' does not exist (looked in {}); make it with `trainer tokenize`, and "
          "name it without its ending",
          prefix, ending, std::filesystem::current_path().string());
}

void check_exists(const std::string& key, const std::string& path, const std::string& what) {
  if (!std::filesystem::exists(path))
    input_error("key '{}': {} '{}' does not exist (looked in {})", key, what, path,
                std::filesystem::current_path().string());
}

}  // namespace

void fill_derived_defaults(Config& config) {
  if (!config.data.seed) config.data.seed = config.training.seed;
  if (config.optimizer.lr_decay_steps == 0) config.optimizer.lr_decay_steps = config.training.steps;
  auto& p = config.parallel;
  if (!p.sequence_parallel) p.sequence_parallel = p.tensor_parallel_size > 1;
  if (!config.model.hugging_face.empty()) return;
  ModelSection& m = config.model;
  const bool gpt2 = m.architecture == Architecture::kGpt2;
  if (m.ffn_hidden_size == 0 && gpt2) m.ffn_hidden_size = 4 * m.hidden_size;
  if (m.num_query_groups == 0) m.num_query_groups = m.num_attention_heads;
  if (m.kv_channels == 0 && m.hidden_size % m.num_attention_heads == 0)
    m.kv_channels = m.hidden_size / m.num_attention_heads;
  if (m.max_position_embeddings == 0) m.max_position_embeddings = config.data.sequence_length;
  if (!m.tie_word_embeddings) m.tie_word_embeddings = gpt2;
  if (!m.add_qkv_bias) m.add_qkv_bias = has_qkv_bias(m.architecture);
}

void check_config(const Config& config, const std::string& name) {
  if (config.model.hugging_face.empty()) {
    check_inline_model(config, name);
    if (config.parallel.pipeline_parallel_size > config.model.num_layers)
      input_error(
          "{}: 'parallel.pipeline_parallel_size' ({}) is above 'model.num_layers' ({}); every stage needs a "
          "transformer layer",
          name, config.parallel.pipeline_parallel_size, config.model.num_layers);
  }
  check_batches(config, name);
  check_stages(config, name);
  check_device(config, name);
  check_optimizer(config, name);
  check_data(config, name);
}

bool is_synthetic(const DataSection& data) {
  return data.data_path.prefixes == std::vector<std::string>{kSyntheticData};
}

void check_paths(const Config& config) {
  if (!is_synthetic(config.data))
    for (const auto& prefix : config.data.data_path.prefixes) check_dataset(prefix);
  const std::string& tokenizer = config.data.tokenizer;
  if (!tokenizer.empty() && tokenizer != "byte") check_exists("data.tokenizer", tokenizer, "tokenizer");
  if (!config.model.hugging_face.empty())
    check_exists("model.hugging_face", config.model.hugging_face, "model");
  if (!config.model.initialize_from.empty())
    check_exists("model.initialize_from", config.model.initialize_from, "model folder");
}

namespace {

void resolve_tensor_parallel(Config& config, const ModelConfig& model) {
  auto& p = config.parallel;
  check_parts(model, p.tensor_parallel_size);
  p.sequence_parallel = p.tensor_parallel_size > 1 && p.sequence_parallel.value_or(true);
  const int64_t tokens = config.training.micro_batch_size * config.data.sequence_length;
  if (*p.sequence_parallel && tokens % p.tensor_parallel_size != 0)
    input_error(
        "key 'parallel.sequence_parallel': the {} tokens of a micro-batch (training.micro_batch_size x "
        "data.sequence_length) cannot be divided by 'parallel.tensor_parallel_size' ({}); change one of them "
        "or set the key to false",
        tokens, p.tensor_parallel_size);
}

}  // namespace

void resolve_parallel(Config& config, const ModelConfig& model, int world_size) {
  auto& p = config.parallel;
  const int64_t stages = p.pipeline_parallel_size, tensor = p.tensor_parallel_size, one = stages * tensor;
  if (world_size % one != 0) {
    if (tensor == 1)
      input_error(
          "{} rank{}, but key 'parallel.pipeline_parallel_size' is {}: start a multiple of {} ranks "
          "(mpirun -n {}), or change the key",
          world_size, world_size == 1 ? "" : "s", stages, stages, stages);
    input_error(
        "{} rank{}, but 'parallel.pipeline_parallel_size' x 'parallel.tensor_parallel_size' is {} x {}: "
        "start "
        "a multiple of {} ranks (mpirun -n {}), or change the keys",
        world_size, world_size == 1 ? "" : "s", stages, tensor, one, one);
  }
  if (p.data_parallel_size == 0) p.data_parallel_size = world_size / one;
  if (one * p.data_parallel_size != world_size)
    input_error(
        "{} ranks, but 'parallel.pipeline_parallel_size' x 'parallel.data_parallel_size'{} is {} x {}{} = "
        "{}; start that many ranks, or set data_parallel_size to 0 to have it follow",
        world_size, tensor > 1 ? " x 'parallel.tensor_parallel_size'" : "", stages, p.data_parallel_size,
        tensor > 1 ? fmt::format(" x {}", tensor) : "", one * p.data_parallel_size);
  resolve_tensor_parallel(config, model);

  const auto& t = config.training;
  if (t.global_batch_size % (t.micro_batch_size * p.data_parallel_size) != 0)
    input_error(
        "'training.global_batch_size' ({}) is not a multiple of 'training.micro_batch_size' x "
        "data_parallel_size "
        "({} x {} = {}); change one of them or the number of ranks",
        t.global_batch_size, t.micro_batch_size, p.data_parallel_size,
        t.micro_batch_size * p.data_parallel_size);
  if (p.reproducible_group != 0 && p.reproducible_group % p.data_parallel_size != 0)
    input_error(
        "data_parallel_size ({}) does not divide 'parallel.reproducible_group' ({}); use a power of two up "
        "to it",
        p.data_parallel_size, p.reproducible_group);

  if (p.stage_layers.empty()) p.stage_layers = even_stage_layers(model.num_layers, stages);
  const int64_t sum = std::accumulate(p.stage_layers.begin(), p.stage_layers.end(), int64_t{0});
  if (sum != model.num_layers)
    input_error("key 'parallel.stage_layers': the stages hold {} layers together, but the model has {}", sum,
                model.num_layers);
  if (!model.rope() && config.data.sequence_length > model.max_position_embeddings)
    input_error("'data.sequence_length' ({}) is above the {} positions that the model has; lower it",
                config.data.sequence_length, model.max_position_embeddings);
}

std::string hugging_face_file(const Config& config) {
  std::filesystem::path file = config.model.hugging_face;
  if (std::filesystem::is_directory(file)) file /= "config.json";
  return file.string();
}

bool is_planned_only(const Json& json, const std::string& where) {
  return json_string(json, "model_type", where, "") == "baichuan";
}

ModelConfig make_model_config(const Config& config, int64_t tokenizer_vocabulary) {
  const ModelSection& m = config.model;
  ModelConfig model;
  std::string where = "model";
  if (!m.hugging_face.empty()) {
    where = hugging_face_file(config);
    const Json json = parse_json_file(where);
    if (is_planned_only(json, where))
      input_error(
          "{}: a Baichuan model (model_type \"baichuan\", ALiBi positions) can be planned for, but not "
          "trained; trainable are llama, qwen2, qwen3 and gpt2",
          where);
    model = model_config_from_hugging_face(json, where);
  } else {
    model.architecture = m.architecture;
    model.vocabulary_size = m.vocabulary_size ? m.vocabulary_size : tokenizer_vocabulary;
    model.hidden_size = m.hidden_size;
    model.num_layers = m.num_layers;
    model.num_attention_heads = m.num_attention_heads;
    model.num_query_groups = m.num_query_groups;
    model.head_dim = m.kv_channels;
    model.ffn_hidden_size = m.ffn_hidden_size;
    model.max_position_embeddings = m.max_position_embeddings;
    model.norm_epsilon = m.norm_epsilon;
    model.rope_theta = m.rotary_base;
    model.rope_scaling = m.rope_scaling;
    model.tie_word_embeddings = *m.tie_word_embeddings;
    model.qkv_bias = *m.add_qkv_bias;
    model.output_bias = *m.add_qkv_bias && m.architecture != Architecture::kQwen2;
    model.mlp_bias = m.architecture == Architecture::kGpt2;
    model.init_std = m.init_method_std;
    if (model.vocabulary_size == 0)
      input_error(
          "key 'model.vocabulary_size' leaves the size to the tokenizer, and it is unknown here; give it");
  }
  if (tokenizer_vocabulary > model.vocabulary_size)
    input_error(
        "the tokenizer '{}' has {} tokens, but the model's vocabulary holds {}; raise the vocabulary's size "
        "or use the "
        "tokenizer that belongs to the model",
        config.data.tokenizer, tokenizer_vocabulary, model.vocabulary_size);
  validate(model, where);
  return model;
}

LrSchedule make_lr_schedule(const Config& config) {
  const auto& o = config.optimizer;
  return {.lr = o.lr,
          .min_lr = o.min_lr,
          .style = o.lr_decay_style,
          .warmup_steps = o.lr_warmup_steps,
          .decay_steps = o.lr_decay_steps,
          .wsd_decay_steps = o.wsd_decay_steps,
          .wsd_style = o.wsd_decay_style};
}

}  // namespace trainer
