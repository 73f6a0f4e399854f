#include <algorithm>

#include "base/error.h"
#include "model/layers.h"
#include "model/tensor_part.h"

namespace trainer {

Model::Model(ModelConfig config, int64_t positions, TensorPart part)
    : config_(std::move(config)), part_(part) {
  validate(config_, "model");
  check_parts(config_, part_.size);
  if (positions <= 0) positions = config_.max_position_embeddings;
  if (config_.rope()) {
    rope_tables_ = make_rope_tables(config_, positions);
    positions_ = positions;
  }
  const RopeTables rope = rope_tables();
  layers_.push_back(make_embedding_layer(config_, part_));
  for (int64_t i = 0; i < config_.num_layers; ++i)
    layers_.push_back(make_transformer_block(config_, i, rope, part_));
  layers_.push_back(make_head_layer(config_, part_));
}

Model::~Model() = default;
Model::Model(Model&&) noexcept = default;

RopeTables Model::rope_tables() const {
  if (rope_tables_.empty()) return {};
  return {rope_tables_.data(), rope_tables_.data() + rope_tables_.size() / 2, positions_};
}

const HeadLayer& Model::head() const { return static_cast<const HeadLayer&>(*layers_.back()); }

WorkspaceShape Model::workspace_shape(int64_t micro_batch, int64_t sequence, DType dtype) const {
  const ModelConfig own = part_of(config_, part_);
  const int64_t up_width = own.gated_mlp() ? 2 * own.ffn_hidden_size : own.ffn_hidden_size;
  return {.dtype = dtype,
          .tokens = micro_batch * sequence,
          .widest_row = std::max({own.hidden_size, own.q_width() + 2 * own.kv_width(), up_width}),
          .hidden = own.hidden_size,
          .vocabulary = vocabulary_range(config_.vocabulary_size, part_).most,
          .sequence = sequence,
          .heads = own.num_attention_heads,
          .head_dim = own.head_dim,
          .tensor_ranks = part_.size};
}

int64_t Model::parameter_count() const {
  int64_t count = 0;
  for (const auto& layer : layers_)
    for (const auto& parameter : layer->parameters()) count += parameter.logical_count();
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
