#include <algorithm>

#include "model/layers.h"

namespace trainer {

Model::Model(ModelConfig config, int64_t positions) : config_(std::move(config)) {
  validate(config_, "model");
  if (positions <= 0) positions = config_.max_position_embeddings;
  RopeTables rope;
  if (config_.rope()) {
    rope_tables_ = make_rope_tables(config_, positions);
    rope = {rope_tables_.data(), rope_tables_.data() + rope_tables_.size() / 2, positions};
  }
  layers_.push_back(make_embedding_layer(config_));
  for (int64_t i = 0; i < config_.num_layers; ++i)
    layers_.push_back(make_transformer_block(config_, i, rope));
  layers_.push_back(make_head_layer(config_));
}

Model::~Model() = default;
Model::Model(Model&&) noexcept = default;

const HeadLayer& Model::head() const { return static_cast<const HeadLayer&>(*layers_.back()); }

WorkspaceShape Model::workspace_shape(int64_t micro_batch, int64_t sequence, DType dtype) const {
  const int64_t up_width = config_.gated_mlp() ? 2 * config_.ffn_hidden_size : config_.ffn_hidden_size;
  return {.dtype = dtype,
          .tokens = micro_batch * sequence,
          .widest_row = std::max({config_.hidden_size, config_.q_width() + 2 * config_.kv_width(), up_width}),
          .hidden = config_.hidden_size,
          .vocabulary = config_.vocabulary_size,
          .sequence = sequence,
          .heads = config_.num_attention_heads,
          .head_dim = config_.head_dim};
}

int64_t Model::parameter_count() const {
  int64_t count = 0;
  for (const auto& layer : layers_)
    for (const auto& parameter : layer->parameters()) count += parameter.count();
  return count;
}

double Model::flops_per_token(int64_t sequence) const {
  const double hidden = static_cast<double>(config_.hidden_size), q = static_cast<double>(config_.q_width());
  const double kv = static_cast<double>(config_.kv_width()),
               ffn = static_cast<double>(config_.ffn_hidden_size);
  const double layers = static_cast<double>(config_.num_layers);
  const double matrices =
      layers * (hidden * ffn * (config_.gated_mlp() ? 3 : 2) + hidden * (q + 2 * kv) + q * hidden) +
      hidden * static_cast<double>(config_.vocabulary_size);
  return 6 * (matrices + layers * q * static_cast<double>(sequence));
}

}  // namespace trainer
