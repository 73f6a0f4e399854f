#include "support/models.h"

#include <algorithm>

#include "ops/classifier_chunk.h"

namespace trainer {
namespace {

struct Sizes {
  int64_t vocabulary, hidden, layers, heads, groups, head_dim, ffn, positions;
};

ModelConfig model_of(Architecture architecture, const Sizes& s) {
  ModelConfig m;
  m.architecture = architecture;
  m.vocabulary_size = s.vocabulary;
  m.hidden_size = s.hidden;
  m.num_layers = s.layers;
  m.num_attention_heads = s.heads;
  m.num_query_groups = s.groups;
  m.head_dim = s.head_dim;
  m.ffn_hidden_size = s.ffn;
  m.max_position_embeddings = s.positions;
  m.tie_word_embeddings = true;
  m.output_bias = m.mlp_bias = architecture == Architecture::kGpt2;
  m.qkv_bias = architecture != Architecture::kLlama;
  return m;
}

ModelConfig qwen() {
  ModelConfig m = model_of(Architecture::kQwen2, {151936, 896, 24, 14, 2, 64, 4864, 32768});
  m.norm_epsilon = 1e-6;
  m.rope_theta = 1e6;
  return m;
}

}  // namespace

const std::vector<NamedModel>& published_models() {
  static const std::vector<NamedModel> models = {
      {"gpt2-124m", model_of(Architecture::kGpt2, {50257, 768, 12, 12, 12, 64, 3072, 1024})},
      {"llama-110m", model_of(Architecture::kLlama, {32000, 768, 12, 12, 12, 64, 2048, 4096})},
      {"qwen2.5-0.5b", qwen()}};
  return models;
}

const std::vector<NamedModel>& tiny_models() {
  static const std::vector<NamedModel> models = {
      {"tiny-gpt2", model_of(Architecture::kGpt2, {257, 64, 2, 4, 4, 16, 128, 64})},
      {"tiny-llama", model_of(Architecture::kLlama, {257, 64, 2, 4, 2, 16, 128, 64})}};
  return models;
}

std::vector<GemmShape> block_products(const ModelConfig& m, int64_t tokens) {
  return {{tokens, m.q_width() + 2 * m.kv_width(), m.hidden_size},
          {tokens, m.hidden_size, m.q_width()},
          {tokens, m.ffn_hidden_size * (m.gated_mlp() ? 2 : 1), m.hidden_size},
          {tokens, m.hidden_size, m.ffn_hidden_size}};
}

GemmShape classifier_product(const ModelConfig& m, int64_t tokens) {
  return {std::min(tokens, classifier_chunk_tokens(m.vocabulary_size)), m.vocabulary_size, m.hidden_size};
}

int64_t block_elements(const ModelConfig& m) {
  int64_t elements = 0;
  for (const GemmShape& product : block_products(m, 1)) elements += product.n * product.k;
  return elements;
}

}  // namespace trainer
