#include <cmath>
#include <initializer_list>

#include "base/error.h"
#include "model/config.h"

namespace trainer {
namespace {

bool given(const Json& json, const char* key) { return json.contains(key) && !json.at(key).is_null(); }

// Features whose presence changes what the model computes and that libtrainer does not have.
void refuse_if_true(const Json& json, const char* key, const std::string& where) {
  if (json_bool(json, key, where, false))
    input_error("{}: key '{}': true is not supported; use a model without it", where, key);
}

void refuse_common(const Json& json, const std::string& where) {
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"})
    if (given(json, key) && json_integer(json, key, where) > 1)
      input_error("{}: key '{}': mixtures of experts are not supported; use a dense model", where, key);
  if (given(json, "quantization_config"))
    input_error(
        "{}: key 'quantization_config': quantised weights cannot be trained; use the unquantised model",
        where);
  if (json_number(json, "partial_rotary_factor", where, 1.0) != 1.0)
    input_error("{}: key 'partial_rotary_factor': rotating a part of each head is not supported", where);
  if (given(json, "layer_types"))
    for (const auto& type : json.at("layer_types"))
      if (type != "full_attention")
        input_error("{}: key 'layer_types': {} is not supported; every layer must have full_attention", where,
                    type.dump());
}

// Sliding windows are in use unless the config says otherwise; Qwen states a window and switches it off.
void refuse_sliding_window(const Json& json, bool has_switch, const std::string& where) {
  if (!given(json, "sliding_window") || (has_switch && !json_bool(json, "use_sliding_window", where, false)))
    return;
  if (json_integer(json, "sliding_window", where) > 0)
    input_error(
        "{}: key 'sliding_window': sliding-window attention is not supported; use a model with full "
        "attention",
        where);
}

// The block that older configs call rope_scaling and newer ones rope_parameters, where the base also lives.
void read_rope(const Json& json, const std::string& where, ModelConfig& config) {
  config.rope_theta = json_number(json, "rope_theta", where, config.rope_theta);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!given(json, key)) continue;
    const Json& block = json.at(key);
    const std::string place = where + ": " + key;
    if (!block.is_object())
      input_error("{}: key '{}': expected an object, found {}", where, key, block.dump());
    for (const auto& [name, value] : block.items())
      if (value.is_object())
        input_error("{}: key '{}': rotary settings per layer type are not supported", place, name);
    config.rope_theta = json_number(block, "rope_theta", place, config.rope_theta);
    if (json_number(block, "partial_rotary_factor", place, 1.0) != 1.0)
      input_error("{}: key 'partial_rotary_factor': rotating a part of each head is not supported", place);
    const std::string type =
        json_string(block, "rope_type", place, json_string(block, "type", place, "default"));
    if (type == "default") continue;
    if (type != "llama3")
      input_error("{}: rotary scaling of type '{}' is not supported; supported are 'default' and 'llama3'",
                  place, type);
    config.rope_scaling =
        RopeScaling{.factor = json_number(block, "factor", place),
                    .low_frequency_factor = json_number(block, "low_freq_factor", place),
                    .high_frequency_factor = json_number(block, "high_freq_factor", place),
                    .original_max_positions = json_integer(block, "original_max_position_embeddings", place)};
  }
}

ModelConfig read_llama_family(const Json& json, Architecture architecture, const std::string& where) {
  ModelConfig config;
  config.architecture = architecture;
  config.vocabulary_size = json_integer(json, "vocab_size", where);
  config.hidden_size = json_integer(json, "hidden_size", where);
  config.num_layers = json_integer(json, "num_hidden_layers", where);
  config.num_attention_heads = json_integer(json, "num_attention_heads", where);
  config.num_query_groups = json_integer(json, "num_key_value_heads", where, config.num_attention_heads);
  config.ffn_hidden_size = json_integer(json, "intermediate_size", where);
  config.max_position_embeddings = json_integer(json, "max_position_embeddings", where, 2048);
  config.norm_epsilon = json_number(json, "rms_norm_eps", where, 1e-6);
  config.tie_word_embeddings = json_bool(json, "tie_word_embeddings", where, false);
  config.init_std = json_number(json, "initializer_range", where, 0.02);
  if (given(json, "head_dim")) {
    config.head_dim = json_integer(json, "head_dim", where);
  } else {
    if (config.num_attention_heads <= 0 || config.hidden_size % config.num_attention_heads != 0)
      input_error("{}: key 'hidden_size': {} cannot be divided by num_attention_heads {}; give 'head_dim'",
                  where, config.hidden_size, config.num_attention_heads);
    config.head_dim = config.hidden_size / config.num_attention_heads;
  }

  const bool attention_bias = json_bool(json, "attention_bias", where, false);
  // Qwen2 has no key for its query, key and value biases: they are part of the architecture.
  config.qkv_bias = architecture == Architecture::kQwen2 || attention_bias;
  config.output_bias = architecture != Architecture::kQwen2 && attention_bias;
  config.mlp_bias = architecture == Architecture::kLlama && json_bool(json, "mlp_bias", where, false);

  const std::string activation = json_string(json, "hidden_act", where, "silu");
  if (activation != "silu" && activation != "swish")
    input_error("{}: key 'hidden_act': '{}' is not supported for {}; it must be 'silu'", where, activation,
                name_of(architecture));
  refuse_common(json, where);
  refuse_sliding_window(json, architecture != Architecture::kLlama, where);
  read_rope(json, where, config);
  return config;
}

ModelConfig read_gpt2(const Json& json, const std::string& where) {
  ModelConfig config;
  config.architecture = Architecture::kGpt2;
  config.vocabulary_size = json_integer(json, "vocab_size", where);
  config.hidden_size = json_integer(json, "n_embd", where);
  config.num_layers = json_integer(json, "n_layer", where);
  config.num_attention_heads = config.num_query_groups = json_integer(json, "n_head", where);
  config.ffn_hidden_size = json_integer(json, "n_inner", where, 4 * config.hidden_size);
  config.max_position_embeddings = json_integer(json, "n_positions", where, 1024);
  config.norm_epsilon = json_number(json, "layer_norm_epsilon", where, 1e-5);
  config.tie_word_embeddings = json_bool(json, "tie_word_embeddings", where, true);
  config.init_std = json_number(json, "initializer_range", where, 0.02);
  if (config.num_attention_heads <= 0 || config.hidden_size % config.num_attention_heads != 0)
    input_error("{}: key 'n_embd': {} cannot be divided by n_head {}", where, config.hidden_size,
                config.num_attention_heads);
  config.head_dim = config.hidden_size / config.num_attention_heads;
  config.qkv_bias = config.output_bias = config.mlp_bias = true;

  const std::string activation = json_string(json, "activation_function", where, "gelu_new");
  if (activation != "gelu_new" && activation != "gelu_pytorch_tanh" && activation != "gelu")
    input_error("{}: key 'activation_function': '{}' is not supported; use 'gelu_new' or 'gelu'", where,
                activation);
  config.gelu_exact = activation == "gelu";
  refuse_common(json, where);
  refuse_if_true(json, "scale_attn_by_inverse_layer_idx", where);
  refuse_if_true(json, "add_cross_attention", where);
  if (!json_bool(json, "scale_attn_weights", where, true))
    input_error("{}: key 'scale_attn_weights': false is not supported", where);
  return config;
}

}  // namespace

const char* name_of(Architecture architecture) {
  switch (architecture) {
    case Architecture::kLlama:
      return "llama";
    case Architecture::kQwen2:
      return "qwen2";
    case Architecture::kQwen3:
      return "qwen3";
    case Architecture::kGpt2:
      return "gpt2";
  }
  return "unknown";
}

void validate(const ModelConfig& config, const std::string& where) {
  struct Size {
    const char* name;
    int64_t value;
  };
  // Bounds what later products of sizes can reach, far above any model's.
  constexpr int64_t kLargest = int64_t{1} << 24;
  for (const Size& size :
       {Size{"vocabulary size", config.vocabulary_size}, Size{"hidden size", config.hidden_size},
        Size{"number of layers", config.num_layers},
        Size{"number of attention heads", config.num_attention_heads},
        Size{"number of key/value heads", config.num_query_groups}, Size{"head dimension", config.head_dim},
        Size{"feed-forward size", config.ffn_hidden_size},
        Size{"longest position", config.max_position_embeddings}})
    if (size.value < 1 || size.value > kLargest)
      input_error("{}: the {} is {}; it must lie between 1 and {}", where, size.name, size.value, kLargest);
  if (config.num_attention_heads % config.num_query_groups != 0)
    input_error("{}: {} attention heads cannot share {} key/value heads evenly", where,
                config.num_attention_heads, config.num_query_groups);
  if (config.rope() && config.head_dim % 2 != 0)
    input_error("{}: head dimension {} is odd; rotary positions need pairs", where, config.head_dim);
  if (!config.rope() &&
      (config.num_query_groups != config.num_attention_heads || config.q_width() != config.hidden_size))
    input_error(
        "{}: {} needs as many key/value heads as attention heads, and heads as wide as the hidden size "
        "together",
        where, name_of(config.architecture));
  if (!(config.norm_epsilon > 0))
    input_error("{}: the norm's epsilon is {}; it must be positive", where, config.norm_epsilon);
  if (config.rope() && !(config.rope_theta > 1))
    input_error("{}: rope_theta is {}; it must exceed 1", where, config.rope_theta);
  if (!(config.init_std >= 0))
    input_error("{}: initializer_range is {}; it must not be negative", where, config.init_std);
  if (const auto& scaling = config.rope_scaling) {
    if (!(scaling->factor >= 1))
      input_error("{}: the rotary scaling's factor is {}; it must be at least 1", where, scaling->factor);
    if (!(scaling->low_frequency_factor > 0 &&
          scaling->high_frequency_factor > scaling->low_frequency_factor))
      input_error("{}: rotary scaling needs 0 < low_freq_factor < high_freq_factor, found {} and {}", where,
                  scaling->low_frequency_factor, scaling->high_frequency_factor);
    if (scaling->original_max_positions < 1)
      input_error("{}: the rotary scaling's original_max_position_embeddings is {}; it must be positive",
                  where, scaling->original_max_positions);
  }
}

ModelConfig model_config_from_hugging_face(const Json& json, const std::string& where) {
  const std::string type = json_string(json, "model_type", where);
  ModelConfig config;
  if (type == "llama")
    config = read_llama_family(json, Architecture::kLlama, where);
  else if (type == "qwen2")
    config = read_llama_family(json, Architecture::kQwen2, where);
  else if (type == "qwen3")
    config = read_llama_family(json, Architecture::kQwen3, where);
  else if (type == "gpt2")
    config = read_gpt2(json, where);
  else
    input_error("{}: key 'model_type': '{}' is not supported; supported are llama, qwen2, qwen3 and gpt2",
                where, type);
  config.source = json;
  validate(config, where);
  return config;
}

Json model_config_to_hugging_face(const ModelConfig& config) {
  Json json = config.source.is_object() ? config.source : Json::object();
  const auto keep_or_set = [&](const char* key, const auto& value) {
    if (!json.contains(key)) json[key] = value;
  };
  json["model_type"] = name_of(config.architecture);
  json["vocab_size"] = config.vocabulary_size;
  json["tie_word_embeddings"] = config.tie_word_embeddings;
  json["initializer_range"] = config.init_std;
  if (config.architecture == Architecture::kGpt2) {
    keep_or_set("architectures", Json::array({"GPT2LMHeadModel"}));
    json["n_embd"] = config.hidden_size;
    json["n_layer"] = config.num_layers;
    json["n_head"] = config.num_attention_heads;
    json["n_positions"] = config.max_position_embeddings;
    // Null stands for four times the hidden size.
    const bool derived = config.ffn_hidden_size == 4 * config.hidden_size;
    if (!(derived && json.contains("n_inner") && json["n_inner"].is_null()))
      json["n_inner"] = config.ffn_hidden_size;
    json["layer_norm_epsilon"] = config.norm_epsilon;
    keep_or_set("activation_function", config.gelu_exact ? "gelu" : "gelu_new");
    return json;
  }

  const char* model_class = config.architecture == Architecture::kLlama   ? "LlamaForCausalLM"
                            : config.architecture == Architecture::kQwen2 ? "Qwen2ForCausalLM"
                                                                          : "Qwen3ForCausalLM";
  keep_or_set("architectures", Json::array({model_class}));
  json["hidden_size"] = config.hidden_size;
  json["num_hidden_layers"] = config.num_layers;
  json["num_attention_heads"] = config.num_attention_heads;
  json["num_key_value_heads"] = config.num_query_groups;
  json["head_dim"] = config.head_dim;
  json["intermediate_size"] = config.ffn_hidden_size;
  json["max_position_embeddings"] = config.max_position_embeddings;
  json["rms_norm_eps"] = config.norm_epsilon;
  keep_or_set("hidden_act", "silu");
  if (config.architecture != Architecture::kQwen2) json["attention_bias"] = config.qkv_bias;
  if (config.architecture == Architecture::kLlama) json["mlp_bias"] = config.mlp_bias;

  // A config that came from a file keeps its rotary settings as they are written there. A new one uses the
  // older keys, which every version of transformers reads.
  if (!json.contains("rope_parameters") && !json.contains("rope_theta"))
    json["rope_theta"] = config.rope_theta;
  if (config.rope_scaling && !json.contains("rope_parameters") && !json.contains("rope_scaling"))
    json["rope_scaling"] = {
        {"rope_type", "llama3"},
        {"factor", config.rope_scaling->factor},
        {"low_freq_factor", config.rope_scaling->low_frequency_factor},
        {"high_freq_factor", config.rope_scaling->high_frequency_factor},
        {"original_max_position_embeddings", config.rope_scaling->original_max_positions}};
  return json;
}

}  // namespace trainer
