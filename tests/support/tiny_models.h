// Model shapes small enough for tests, with sizes that are no multiples of a vector's width.
#pragma once

#include "model/config.h"

namespace trainer {

inline ModelConfig tiny_model(Architecture architecture) {
  ModelConfig config;
  config.architecture = architecture;
  config.vocabulary_size = 37;
  config.hidden_size = 20;
  config.num_layers = 2;
  config.num_attention_heads = 4;
  config.num_query_groups = architecture == Architecture::kGpt2 ? 4 : 2;
  config.head_dim = architecture == Architecture::kQwen3 ? 8 : architecture == Architecture::kGpt2 ? 5 : 6;
  config.ffn_hidden_size = 28;
  config.max_position_embeddings = 64;
  config.tie_word_embeddings = architecture == Architecture::kGpt2 || architecture == Architecture::kQwen2;
  config.qkv_bias = architecture == Architecture::kGpt2 || architecture == Architecture::kQwen2;
  config.output_bias = config.mlp_bias = architecture == Architecture::kGpt2;
  if (architecture == Architecture::kLlama)
    config.rope_scaling = RopeScaling{.factor = 4, .original_max_positions = 16};
  return config;
}

}  // namespace trainer
