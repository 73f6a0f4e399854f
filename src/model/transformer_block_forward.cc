#include "model/key_value_rows.h"
#include "model/transformer_block.h"

namespace trainer {

TransformerBlock::ForwardBuffers TransformerBlock::lay_out_forward(Scratch& scratch, int64_t tokens,
                                                                   DType dtype, Saved& saved,
                                                                   bool own_keys) const {
  const int64_t q = config_.q_width(), kv = config_.kv_width(), heads = config_.num_attention_heads;
  ForwardBuffers buffers;
  buffers.normed = scratch.take(tokens * config_.hidden_size, dtype);
  const int64_t resident = resident_tokens(tokens, part_);
  buffers.reciprocal = scratch.take_f32(resident);
  if (!config_.rms_norm()) buffers.mean = scratch.take_f32(resident);

  // The attention half and the feed-forward half are never alive together.
  const int64_t half = scratch.used();
  const auto take_unless_saved = [&](Ref& tensor, int64_t elements) {
    if (!tensor) tensor = scratch.take(elements, dtype);
  };
  buffers.qkv = scratch.take(tokens * qkv_width(), dtype);
  if (config_.qk_norm()) {
    buffers.head_reciprocal = scratch.take_f32(tokens * heads);
    take_unless_saved(saved.query_raw, tokens * q);
    take_unless_saved(saved.key_raw, tokens * kv);
  }
  take_unless_saved(saved.query, tokens * q);
  if (own_keys) {
    take_unless_saved(saved.key, tokens * kv);
    take_unless_saved(saved.value, tokens * kv);
  }
  take_unless_saved(saved.attention, tokens * q);
  if (!saved.log_sum_exp) saved.log_sum_exp = scratch.take_f32(tokens * heads);

  scratch.rewind(half);
  buffers.activated = scratch.take(tokens * config_.ffn_hidden_size, dtype);
  take_unless_saved(saved.up, tokens * up_width());
  return buffers;
}

ClassifierResult TransformerBlock::forward(const LayerCall& call, ConstRef x, Ref y) const {
  check_positions(call.batch);
  run(call, x, y, bind(call), Wanted{});
  return {};
}

void TransformerBlock::recover(const LayerCall& call, ConstRef x) const {
  const Saved saved = bind(call);
  require(saved.residual && saved.up, "{}: recover is given every saved tensor", name_);
  const auto all_kept = [&](int first, int count) {
    const uint64_t mask = ((uint64_t{1} << count) - 1) << first;
    return (call.kept & mask) == mask;
  };
  const int projections = config_.qk_norm() ? 4 : 3;  // the entries of bind() that the first products give
  Wanted wanted;
  wanted.projections = !all_kept(0, projections);
  wanted.attention = !all_kept(projections, 2);
  wanted.residual = !all_kept(projections + 2, 1);
  wanted.up = !all_kept(projections + 3, 1);
  wanted.output = false;
  run(call, x, {}, saved, wanted);
}

void TransformerBlock::run(const LayerCall& call, ConstRef x, Ref y, Saved saved,
                           const Wanted& wanted) const {
  const int64_t hidden = config_.hidden_size, ffn = config_.ffn_hidden_size, tokens = call.batch.count();
  Scratch scratch(call.temporary);
  const ForwardBuffers buffers = lay_out_forward(scratch, tokens, x.dtype, saved, call.carry == nullptr);
  const KeyValues kv = key_values(call, saved);
  const TensorLink link = this->link(call);
  const int64_t resident = link.resident() * hidden;
  const bool keep_residual = static_cast<bool>(saved.residual);
  const Ref residual = keep_residual ? saved.residual : y;

  if (wanted.projections) project_and_rotate(call, x, saved, buffers, kv);
  if (wanted.attention) {
    // With norms between projection and rotation the rotated query is not among the saved tensors.
    if (config_.qk_norm()) norm_and_rotate_query(call, saved.query_raw, saved.query, buffers.head_reciprocal);
    call.kernels.attention_forward(saved.attention, saved.log_sum_exp, saved.query, kv.k, kv.v,
                                   attention_shape(call, kv));
  }
  if (wanted.residual) {
    const Ref output = link.sequence() ? buffers.normed : residual;
    linear(call, output, saved.attention, at_.output, link.adds_bias() ? at_.output_bias : -1, hidden,
           config_.q_width());
    link.sum(output);
    if (link.sequence()) call.kernels.convert(residual, link.own(output), resident);
    call.kernels.add(residual, x, resident);
  }
  if (wanted.up) {
    norm(call, link.own(buffers.normed), residual, at_.norm2, at_.norm2_bias, buffers.mean,
         buffers.reciprocal);
    link.gather(buffers.normed);
    linear(call, saved.up, buffers.normed, at_.up, at_.up_bias, up_width(), hidden);
  }
  if (!wanted.output) return;

  if (config_.gated_mlp())
    call.kernels.swiglu_forward(buffers.activated, saved.up, tokens, ffn);
  else
    call.kernels.gelu_forward(buffers.activated, saved.up, tokens * ffn, config_.gelu_exact);
  // The sum's operands may swap places between the cases: addition gives the same bits.
  const Ref down = keep_residual && !link.sequence() ? y : buffers.normed;
  linear(call, down, buffers.activated, at_.down, link.adds_bias() ? at_.down_bias : -1, hidden, ffn);
  link.sum(down);
  if (keep_residual && link.sequence()) call.kernels.convert(y, residual, resident);
  call.kernels.add(y, down.data == y.data ? residual : link.own(down), resident);
}

void TransformerBlock::project_and_rotate(const LayerCall& call, ConstRef x, const Saved& saved,
                                          const ForwardBuffers& buffers, const KeyValues& kv) const {
  const int64_t q = config_.q_width(), k = config_.kv_width(), width = qkv_width(),
                groups = config_.num_query_groups;
  const int64_t tokens = call.batch.count();
  const TensorLink link = this->link(call);
  norm(call, link.own(buffers.normed), x, at_.norm1, at_.norm1_bias, buffers.mean, buffers.reciprocal);
  link.gather(buffers.normed);
  linear(call, buffers.qkv, buffers.normed, at_.qkv, at_.qkv_bias, width, config_.hidden_size);

  if (config_.qk_norm()) {
    call.kernels.convert_rows(saved.query_raw, q, buffers.qkv, width, tokens, q);
    call.kernels.convert_rows(saved.key_raw, k, buffers.qkv.at(q), width, tokens, k);
  } else if (config_.rope()) {
    rotate(call, saved.query, q, buffers.qkv, width, 0, tokens, config_.num_attention_heads, false);
  } else {
    call.kernels.convert_rows(saved.query, q, buffers.qkv, width, tokens, q);
  }

  for_each_run(call.batch.micro_batch, call.batch.sequence, kv.rows, kv.offset,
               [&](int64_t from, int64_t to, int64_t rows) {
                 const Ref key = kv.k.at(to * k);
                 const ConstRef projected = buffers.qkv.at(from * width + q);
                 if (config_.qk_norm()) {
                   head_norm(call, key, saved.key_raw.at(from * k), at_.k_norm, rows, groups,
                             buffers.head_reciprocal);
                   rotate(call, key, k, key, k, from, rows, groups, false);
                 } else if (config_.rope()) {
                   rotate(call, key, k, projected, width, from, rows, groups, false);
                 } else {
                   call.kernels.convert_rows(key, k, projected, width, rows, k);
                 }
                 call.kernels.convert_rows(kv.v.at(to * k), k, projected.at(k), width, rows, k);
               });
}

void TransformerBlock::norm_and_rotate_query(const LayerCall& call, ConstRef raw, Ref query,
                                             float* head_reciprocal) const {
  const int64_t q = config_.q_width(), heads = config_.num_attention_heads, tokens = call.batch.count();
  head_norm(call, query, raw, at_.q_norm, tokens, heads, head_reciprocal);
  rotate(call, query, q, query, q, 0, tokens, heads, false);
}

}  // namespace trainer
