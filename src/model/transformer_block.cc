// Parameters, sizes and the bindings of a transformer block; its passes are in transformer_block_forward.cc
// and transformer_block_backward.cc.
#include "model/transformer_block.h"

#include <cmath>

namespace trainer {
namespace {

struct BlockNames {
  std::string norm1, norm2, q, k, v, q_norm, k_norm, output, gate, up, down;
};

BlockNames hugging_face_names(const std::string& prefix) {
  return {.norm1 = prefix + "input_layernorm",
          .norm2 = prefix + "post_attention_layernorm",
          .q = prefix + "self_attn.q_proj",
          .k = prefix + "self_attn.k_proj",
          .v = prefix + "self_attn.v_proj",
          .q_norm = prefix + "self_attn.q_norm",
          .k_norm = prefix + "self_attn.k_norm",
          .output = prefix + "self_attn.o_proj",
          .gate = prefix + "mlp.gate_proj",
          .up = prefix + "mlp.up_proj",
          .down = prefix + "mlp.down_proj"};
}

}  // namespace

TransformerBlock::TransformerBlock(const ModelConfig& config, int64_t index, const RopeTables& rope,
                                   const TensorPart& part)
    : config_(part_of(config, part)), part_(part), name_(fmt::format("block {}", index)), rope_(rope) {
  const auto rows = [&](ParameterSpec spec, const std::vector<int64_t>& heights = {}) {
    return cut_rows(std::move(spec), part, heights);
  };
  const auto columns = [&](ParameterSpec spec) { return cut_columns(std::move(spec), part); };
  const int64_t hidden = config.hidden_size, ffn = config.ffn_hidden_size;
  const int64_t q = config.q_width(), kv = config.kv_width();
  const double std = config.init_std;
  // Projections into the residual stream start smaller, so that its variance does not grow with depth.
  const double residual_std = std / std::sqrt(2.0 * static_cast<double>(config.num_layers));

  if (config.architecture == Architecture::kGpt2) {
    const std::string p = fmt::format("transformer.h.{}.", index);
    at_.norm1 = layout_.add(gain_spec(p + "ln_1.weight", hidden));
    at_.norm1_bias = layout_.add(bias_spec(p + "ln_1.bias", hidden));
    at_.qkv =
        layout_.add(rows(matrix_spec(p + "attn.c_attn.weight", q + 2 * kv, hidden, std, true), {q, kv, kv}));
    at_.qkv_bias = layout_.add(rows(bias_spec(p + "attn.c_attn.bias", q + 2 * kv), {q, kv, kv}));
    at_.output = layout_.add(columns(matrix_spec(p + "attn.c_proj.weight", hidden, q, residual_std, true)));
    at_.output_bias = layout_.add(bias_spec(p + "attn.c_proj.bias", hidden));
    at_.norm2 = layout_.add(gain_spec(p + "ln_2.weight", hidden));
    at_.norm2_bias = layout_.add(bias_spec(p + "ln_2.bias", hidden));
    at_.up = layout_.add(rows(matrix_spec(p + "mlp.c_fc.weight", ffn, hidden, std, true)));
    at_.up_bias = layout_.add(rows(bias_spec(p + "mlp.c_fc.bias", ffn)));
    at_.down = layout_.add(columns(matrix_spec(p + "mlp.c_proj.weight", hidden, ffn, residual_std, true)));
    at_.down_bias = layout_.add(bias_spec(p + "mlp.c_proj.bias", hidden));
    return;
  }

  const BlockNames names = hugging_face_names(fmt::format("model.layers.{}.", index));
  at_.norm1 = layout_.add(gain_spec(names.norm1 + ".weight", hidden));
  at_.qkv = layout_.add_group({rows(matrix_spec(names.q + ".weight", q, hidden, std)),
                               rows(matrix_spec(names.k + ".weight", kv, hidden, std)),
                               rows(matrix_spec(names.v + ".weight", kv, hidden, std))});
  if (config.qkv_bias)
    at_.qkv_bias =
        layout_.add_group({rows(bias_spec(names.q + ".bias", q)), rows(bias_spec(names.k + ".bias", kv)),
                           rows(bias_spec(names.v + ".bias", kv))});
  if (config.qk_norm()) {
    at_.q_norm = layout_.add(gain_spec(names.q_norm + ".weight", config.head_dim));
    at_.k_norm = layout_.add(gain_spec(names.k_norm + ".weight", config.head_dim));
  }
  at_.output = layout_.add(columns(matrix_spec(names.output + ".weight", hidden, q, residual_std)));
  if (config.output_bias) at_.output_bias = layout_.add(bias_spec(names.output + ".bias", hidden));
  at_.norm2 = layout_.add(gain_spec(names.norm2 + ".weight", hidden));
  at_.up = layout_.add_group({rows(matrix_spec(names.gate + ".weight", ffn, hidden, std)),
                              rows(matrix_spec(names.up + ".weight", ffn, hidden, std))});
  if (config.mlp_bias)
    at_.up_bias = layout_.add_group(
        {rows(bias_spec(names.gate + ".bias", ffn)), rows(bias_spec(names.up + ".bias", ffn))});
  at_.down = layout_.add(columns(matrix_spec(names.down + ".weight", hidden, ffn, residual_std)));
  if (config.mlp_bias) at_.down_bias = layout_.add(bias_spec(names.down + ".bias", hidden));
}

LayerCatalogue TransformerBlock::catalogue(int64_t micro_batch, int64_t sequence, DType dtype) const {
  const int64_t tokens = micro_batch * sequence, element = static_cast<int64_t>(size_of(dtype));
  const int64_t resident = resident_tokens(tokens, part_);
  const int64_t q = config_.q_width(), kv = config_.kv_width(), hidden = config_.hidden_size;
  const auto product = [&](int64_t n, int64_t k) {
    return 2.0 * static_cast<double>(tokens) * static_cast<double>(n * k);
  };
  // Scores and weighted values, 2 products of sequence^2 x q_width, of which the causal mask leaves half.
  const double attention = 2.0 * static_cast<double>(tokens) * static_cast<double>(sequence * q);

  LayerCatalogue catalogue;
  catalogue.name = name_;
  catalogue.parameters = block_size();
  catalogue.tensors = extents(parameters());
  catalogue.output_bytes = catalogue.gradient_bytes = resident * hidden * element;
  const auto save = [&](const char* name, int64_t bytes, double flops,
                        ReuseClass reuse = ReuseClass::kBackward) {
    catalogue.saved.push_back({name, bytes, flops, reuse});
  };
  // In the order of bind().
  if (config_.qk_norm()) {
    save("query_raw", tokens * q * element, product(q, hidden));
    save("key_raw", tokens * kv * element, product(kv, hidden));
    save("key", tokens * kv * element, 0, ReuseClass::kLaterSegment);
  } else {
    save("query", tokens * q * element, product(q, hidden));
    save("key", tokens * kv * element, product(kv, hidden), ReuseClass::kLaterSegment);
  }
  save("value", tokens * kv * element, product(kv, hidden), ReuseClass::kLaterSegment);
  save("attention", tokens * q * element, attention);
  save("log_sum_exp", tokens * config_.num_attention_heads * 4, 0);
  save("residual", resident * hidden * element, product(hidden, q));
  save("up", tokens * up_width() * element, product(up_width(), hidden));

  Scratch forward, backward;
  Saved none;
  lay_out_forward(forward, tokens, dtype, none, true);
  lay_out_backward(backward, tokens, dtype, true);
  catalogue.temporary_bytes = std::max(forward.peak(), backward.peak());
  catalogue.forward_flops = product(qkv_width(), hidden) + attention + product(hidden, q) +
                            product(up_width(), hidden) + product(hidden, config_.ffn_hidden_size);
  catalogue.backward_flops = 2 * catalogue.forward_flops;

  const ExchangeCount exchange(part_, tokens, hidden, dtype);
  for (const auto& one : {exchange.gather(), exchange.sum(), exchange.gather()})
    catalogue.recover_exchange += one;
  catalogue.forward_exchange = catalogue.recover_exchange;
  catalogue.forward_exchange += exchange.sum();
  for (int half = 0; half < 2; ++half)
    for (const auto& one : {exchange.gather(), exchange.gather(), exchange.sum()})
      catalogue.backward_exchange += one;
  catalogue.backward_exchange += exchange.sum_all(partial_gradients());
  return catalogue;
}

TransformerBlock::Saved TransformerBlock::bind(const LayerCall& call) const {
  Saved saved;
  if (call.saved.empty()) return saved;
  size_t next = 0;
  if (config_.qk_norm()) {
    saved.query_raw = call.saved[next++];
    saved.key_raw = call.saved[next++];
  } else {
    saved.query = call.saved[next++];
  }
  saved.key = call.saved[next++];
  saved.value = call.saved[next++];
  saved.attention = call.saved[next++];
  saved.log_sum_exp = call.saved[next++].f32();
  saved.residual = call.saved[next++];
  saved.up = call.saved[next++];
  require(next == call.saved.size(), "{}: {} saved tensors given, {} expected", name_, call.saved.size(),
          next);
  return saved;
}

TransformerBlock::KeyValues TransformerBlock::key_values(const LayerCall& call, const Saved& saved) {
  if (const Carry* carry = call.carry)
    return {carry->k, carry->v, carry->dk, carry->dv, carry->whole_sequence, carry->offset};
  return {saved.key, saved.value, nullptr, nullptr, call.batch.sequence, 0};
}

AttentionShape TransformerBlock::attention_shape(const LayerCall& call, const KeyValues& kv) const {
  return {.batch = call.batch.micro_batch,
          .query_length = call.batch.sequence,
          .key_length = kv.offset + call.batch.sequence,
          .query_offset = kv.offset,
          .heads = config_.num_attention_heads,
          .kv_heads = config_.num_query_groups,
          .head_dim = config_.head_dim,
          .q_stride = config_.q_width(),
          .k_stride = config_.kv_width(),
          .v_stride = config_.kv_width(),
          .key_rows = kv.rows,
          .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.head_dim))),
          .document_starts = call.batch.document_starts};
}

int64_t TransformerBlock::partial_gradients() const {
  int64_t count = 0;
  for (const ParameterSpec& p : layout_.parameters())
    if (is_partial(p)) count += p.count();
  return count;
}

bool TransformerBlock::is_partial(const ParameterSpec& parameter) const {
  if (part_.size == 1 || !parameter.replicated()) return false;
  const int64_t at = parameter.offset;
  if (at == at_.q_norm || at == at_.k_norm) return true;
  return part_.sequence &&
         (at == at_.norm1 || at == at_.norm1_bias || at == at_.norm2 || at == at_.norm2_bias);
}

void TransformerBlock::check_positions(const BatchView& batch) const {
  if (!config_.rope()) return;
  for (int64_t t = 0; t < batch.count(); ++t)
    require(batch.position(t) >= 0 && batch.position(t) < rope_.positions,
            "position {} is outside the rotary tables of {} positions", batch.position(t), rope_.positions);
}

void TransformerBlock::linear(const LayerCall& call, Ref y, ConstRef x, int64_t weight, int64_t bias,
                              int64_t n, int64_t k) const {
  const ConstRef weights = call.weights;
  call.kernels.linear_forward(y, x, weights.at(weight), bias >= 0 ? weights.at(bias) : ConstRef{},
                              call.batch.count(), n, k);
}

void TransformerBlock::linear_parameters_backward(const LayerCall& call, ConstRef dy, ConstRef x,
                                                  int64_t weight, int64_t bias, int64_t n, int64_t k) const {
  if (!call.gradients) return;
  call.kernels.linear_backward_weight(call.gradients + weight, dy, x, call.batch.count(), n, k,
                                      !call.first_gradients);
  if (bias >= 0) call.kernels.bias_backward(call.gradients + bias, dy, call.batch.count(), n);
}

void TransformerBlock::norm(const LayerCall& call, Ref y, ConstRef x, int64_t weight, int64_t bias,
                            float* mean, float* reciprocal) const {
  const ConstRef weights = call.weights;
  const RowShape rows{.outer = resident_tokens(call.batch.count(), part_),
                      .inner = 1,
                      .columns = config_.hidden_size,
                      .outer_stride = config_.hidden_size};
  call.kernels.norm_forward({.kind = norm_kind(),
                             .x_shape = rows,
                             .y_shape = rows,
                             .x = x,
                             .delta = {},
                             .sum = {},
                             .weight = weights.at(weight),
                             .bias = bias >= 0 ? weights.at(bias) : ConstRef{},
                             .epsilon = static_cast<float>(config_.norm_epsilon),
                             .y = y,
                             .mean = mean,
                             .reciprocal = reciprocal});
}

void TransformerBlock::head_norm(const LayerCall& call, Ref y, ConstRef x, int64_t weight, int64_t tokens,
                                 int64_t heads, float* reciprocal) const {
  const RowShape rows{
      .outer = tokens, .inner = heads, .columns = config_.head_dim, .outer_stride = heads * config_.head_dim};
  call.kernels.norm_forward({.kind = NormKind::kRms,
                             .x_shape = rows,
                             .y_shape = rows,
                             .x = x,
                             .delta = {},
                             .sum = {},
                             .weight = ConstRef(call.weights).at(weight),
                             .bias = {},
                             .epsilon = static_cast<float>(config_.norm_epsilon),
                             .y = y,
                             .mean = nullptr,
                             .reciprocal = reciprocal});
}

void TransformerBlock::rotate(const LayerCall& call, Ref out, int64_t out_stride, ConstRef in,
                              int64_t in_stride, int64_t first, int64_t tokens, int64_t heads,
                              bool inverse) const {
  const RopeTables& tables = call.rope.cosine ? call.rope : rope_;
  call.kernels.rope(out, in,
                    {.tokens = tokens,
                     .heads = heads,
                     .head_dim = config_.head_dim,
                     .in_stride = in_stride,
                     .out_stride = out_stride,
                     .positions = call.batch.positions + first,
                     .cosine = tables.cosine,
                     .sine = tables.sine,
                     .inverse = inverse});
}

std::unique_ptr<Layer> make_transformer_block(const ModelConfig& config, int64_t index,
                                              const RopeTables& rope, const TensorPart& part) {
  return std::make_unique<TransformerBlock>(config, index, rope, part);
}

}  // namespace trainer
