// The shape of a decoder-only language model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/json.h"

namespace trainer {

enum class Architecture : uint8_t { kLlama, kQwen2, kQwen3, kGpt2 };

// Llama-3 frequency scaling; other kinds are refused on reading.
struct RopeScaling {
  double factor = 8, low_frequency_factor = 1, high_frequency_factor = 4;
  int64_t original_max_positions = 8192;
};

struct ModelConfig {
  Architecture architecture = Architecture::kLlama;
  int64_t vocabulary_size = 0;
  int64_t hidden_size = 0;
  int64_t num_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_query_groups = 0;           // key/value heads
  int64_t head_dim = 0;
  int64_t ffn_hidden_size = 0;
  int64_t max_position_embeddings = 2048;
  double norm_epsilon = 1e-5;
  double rope_theta = 10000;
  std::optional<RopeScaling> rope_scaling;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;                  // q, k, v projections (Qwen2; Llama with attention_bias)
  bool output_bias = false;               // attention output projection (Llama with attention_bias; GPT-2)
  bool mlp_bias = false;                  // GPT-2; Llama with mlp_bias
  bool gelu_exact = false;                // GPT-2: erf form instead of tanh
  double init_std = 0.02;
  Json source;                            // the Hugging Face config.json it came from, written back on export; may be null

  bool rms_norm() const { return architecture != Architecture::kGpt2; }
  bool rope() const { return architecture != Architecture::kGpt2; }
  bool gated_mlp() const { return architecture != Architecture::kGpt2; }
  bool qk_norm() const { return architecture == Architecture::kQwen3; }
  int64_t q_width() const { return num_attention_heads * head_dim; }
  int64_t kv_width() const { return num_query_groups * head_dim; }
};

// Throws InputError naming the key when sizes do not fit one another.
void validate(const ModelConfig& config, const std::string& where);

// Reads a Hugging Face config.json (Llama, Qwen2, Qwen3, GPT-2). `where` heads error messages.
ModelConfig model_config_from_hugging_face(const Json& json, const std::string& where);
// The config.json that transformers reads; keeps what `source` had.
Json model_config_to_hugging_face(const ModelConfig& config);

const char* name_of(Architecture architecture);

}  // namespace trainer
