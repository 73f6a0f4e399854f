// Tiny models with made-up weights that tell name and element apart, for tests of what is read and written.
#pragma once

#include <string>

#include "base/hash.h"
#include "base/json.h"
#include "base/philox.h"
#include "checkpoint/model_source.h"

namespace trainer {

inline Json tiny_llama(bool tied) {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"vocab_size", 6},
          {"hidden_size", 4},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 2},
          {"num_key_value_heads", 1},
          {"intermediate_size", 6},
          {"max_position_embeddings", 32},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"tie_word_embeddings", tied},
          {"made_up_key", "kept"}};
}

inline Json tiny_gpt2() {
  return {{"model_type", "gpt2"}, {"vocab_size", 7}, {"n_embd", 4},
          {"n_layer", 1},         {"n_head", 2},     {"n_positions", 5}};
}

// hidden 64, 4 heads, 2 key/value heads, head_dim 32: heads are wider together than the hidden size.
inline Json tiny_qwen3() {
  return {{"model_type", "qwen3"},       {"vocab_size", 9},          {"hidden_size", 64},
          {"num_hidden_layers", 1},      {"num_attention_heads", 4}, {"num_key_value_heads", 2},
          {"intermediate_size", 10},     {"head_dim", 32},           {"max_position_embeddings", 16},
          {"tie_word_embeddings", true}, {"rms_norm_eps", 1e-6}};
}

// Values are exact in bf16 and in half precision.
class SyntheticWeights : public ModelSource {
 public:
  explicit SyntheticWeights(const Json& config, TensorType type = TensorType::kF32) : type_(type) {
    config_ = model_config_from_hugging_face(config, "synthetic");
  }
  static float value(const std::string& name, int64_t index) {
    return static_cast<float>(Philox(hash_string(name)).block(static_cast<uint64_t>(index))[0] % 255) / 128 -
           1;
  }
  TensorType type_of(const ParameterSpec&) const override { return type_; }
  void read(const ParameterSpec& parameter, int64_t begin, std::span<float> values) const override {
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = value(parameter.name, begin + static_cast<int64_t>(i));
  }

 private:
  TensorType type_;
};

inline std::vector<ParameterSpec> parameters_of(const ModelSource& source) {
  return parameters_of(Model(source.config()));
}

}  // namespace trainer
