#include "model/key_value_rows.h"
#include "model/transformer_block.h"

namespace trainer {

TransformerBlock::BackwardBuffers TransformerBlock::lay_out_backward(Scratch& scratch, int64_t tokens,
                                                                     DType dtype, bool own_keys) const {
  const int64_t q = config_.q_width(), kv = config_.kv_width(), heads = config_.num_attention_heads;
  BackwardBuffers buffers;
  buffers.normed = scratch.take(tokens * config_.hidden_size, dtype);
  const int64_t resident = resident_tokens(tokens, part_);
  buffers.reciprocal = scratch.take_f32(resident);
  if (!config_.rms_norm()) buffers.mean = scratch.take_f32(resident);
  if (part_.sequence) buffers.gathered = scratch.take(tokens * config_.hidden_size, dtype);
  if (const int64_t partial = partial_gradients(); partial > 0) buffers.partial = scratch.take_f32(partial);

  // The feed-forward half and the attention half are never alive together.
  const int64_t half = scratch.used();
  buffers.activated = scratch.take(tokens * config_.ffn_hidden_size, dtype);
  buffers.dup = scratch.take(tokens * up_width(), dtype);

  scratch.rewind(half);
  buffers.dattention = scratch.take(tokens * q, dtype);
  buffers.dquery = scratch.take(tokens * q, dtype);
  buffers.dqkv = scratch.take(tokens * qkv_width(), dtype);
  if (own_keys) {
    buffers.dk = scratch.take_f32(tokens * kv);
    buffers.dv = scratch.take_f32(tokens * kv);
  }
  if (config_.qk_norm()) {
    buffers.query = scratch.take(tokens * q, dtype);
    buffers.head_reciprocal = scratch.take_f32(tokens * heads);
    buffers.key_scratch = scratch.take(tokens * kv, dtype);
    buffers.dkey = scratch.take_f32(tokens * kv);
  }
  return buffers;
}

void TransformerBlock::backward(const LayerCall& call, ConstRef x, ConstRef dy, Ref dx) const {
  Scratch scratch(call.temporary);
  const BackwardBuffers buffers =
      lay_out_backward(scratch, call.batch.count(), x.dtype, call.carry == nullptr);
  const Saved saved = bind(call);
  if (call.gradients && call.first_gradients) layout_.clear_beside_matrices(call.kernels, call.gradients);
  if (buffers.partial && call.gradients)
    call.kernels.fill_zero(buffers.partial, static_cast<size_t>(partial_gradients()) * sizeof(float));
  // dx holds the gradient towards the residual stream between the halves until attention's share is added;
  // from then on dy is not read, so the two may be the same memory.
  feed_forward_backward(call, saved, buffers, dy, dx);
  attention_backward(call, saved, buffers, x, dx);
  if (buffers.partial && call.gradients) add_partial_gradients(call, buffers);
}

void TransformerBlock::add_partial_gradients(const LayerCall& call, const BackwardBuffers& buffers) const {
  link(call).sum_all(buffers.partial, partial_gradients());
  const float* from = buffers.partial;
  for (const ParameterSpec& p : layout_.parameters()) {
    if (!is_partial(p)) continue;
    call.kernels.add(ref(call.gradients + p.offset), ref(from), p.count());
    from += p.count();
  }
}

float* TransformerBlock::norm_gradient(const LayerCall& call, const BackwardBuffers& buffers,
                                       int64_t offset) const {
  if (!call.gradients || offset < 0) return nullptr;
  float* to = buffers.partial;
  for (const ParameterSpec& p : layout_.parameters()) {
    if (p.offset == offset) return is_partial(p) ? to : call.gradients + offset;
    if (is_partial(p)) to += p.count();
  }
  return nullptr;
}

void TransformerBlock::feed_forward_backward(const LayerCall& call, const Saved& saved,
                                             const BackwardBuffers& buffers, ConstRef dy,
                                             Ref dresidual) const {
  const int64_t hidden = config_.hidden_size, ffn = config_.ffn_hidden_size, tokens = call.batch.count();
  KernelSet& kernels = call.kernels;
  const ConstRef weights = call.weights;
  const ConstRef whole = gather_gradient(call, buffers, dy);

  if (call.gradients) {
    if (config_.gated_mlp())
      kernels.swiglu_forward(buffers.activated, saved.up, tokens, ffn);
    else
      kernels.gelu_forward(buffers.activated, saved.up, tokens * ffn, config_.gelu_exact);
    linear_parameters_backward(call, whole, buffers.activated, at_.down, at_.down_bias, hidden, ffn);
  }
  const Ref dactivated = buffers.activated;
  kernels.linear_backward_input(dactivated, whole, weights.at(at_.down), tokens, hidden, ffn, false);
  if (config_.gated_mlp())
    kernels.swiglu_backward(buffers.dup, dactivated, saved.up, tokens, ffn);
  else
    kernels.gelu_backward(buffers.dup, dactivated, saved.up, tokens * ffn, config_.gelu_exact);

  // Made again even when frozen: its statistics are needed below.
  const TensorLink link = this->link(call);
  norm(call, link.own(buffers.normed), saved.residual, at_.norm2, at_.norm2_bias, buffers.mean,
       buffers.reciprocal);
  if (call.gradients) link.gather(buffers.normed);
  linear_parameters_backward(call, buffers.dup, buffers.normed, at_.up, at_.up_bias, up_width(), hidden);
  const Ref dnormed = buffers.normed;
  kernels.linear_backward_input(dnormed, buffers.dup, weights.at(at_.up), tokens, up_width(), hidden, false);
  link.sum(dnormed);
  norm_backward(call, link.own(dnormed), saved.residual, at_.norm2, at_.norm2_bias, buffers, dy, dresidual);
}

ConstRef TransformerBlock::gather_gradient(const LayerCall& call, const BackwardBuffers& buffers,
                                           ConstRef dy) const {
  const TensorLink link = this->link(call);
  if (!link.sequence()) return dy;
  call.kernels.convert(link.own(buffers.gathered), dy, link.resident() * config_.hidden_size);
  link.gather(buffers.gathered);
  return buffers.gathered;
}

void TransformerBlock::attention_backward(const LayerCall& call, const Saved& saved,
                                          const BackwardBuffers& buffers, ConstRef x, Ref dx) const {
  const int64_t hidden = config_.hidden_size, q = config_.q_width(), tokens = call.batch.count();
  KernelSet& kernels = call.kernels;
  const ConstRef weights = call.weights;
  const ConstRef whole = gather_gradient(call, buffers, dx);

  KeyValues kv = key_values(call, saved);
  if (!call.carry) {
    kv.dk = buffers.dk;
    kv.dv = buffers.dv;
    const size_t bytes = static_cast<size_t>(tokens * config_.kv_width()) * sizeof(float);
    kernels.fill_zero(kv.dk, bytes);
    kernels.fill_zero(kv.dv, bytes);
  }

  linear_parameters_backward(call, whole, saved.attention, at_.output, at_.output_bias, hidden, q);
  kernels.linear_backward_input(buffers.dattention, whole, weights.at(at_.output), tokens, hidden, q, false);
  if (config_.qk_norm()) norm_and_rotate_query(call, saved.query_raw, buffers.query, buffers.head_reciprocal);
  const Ref query = config_.qk_norm() ? buffers.query : saved.query;
  kernels.attention_backward(buffers.dquery, kv.dk, kv.dv, buffers.dattention, saved.attention,
                             saved.log_sum_exp, query, kv.k, kv.v, attention_shape(call, kv));
  split_gradients(call, saved, buffers, kv);

  const TensorLink link = this->link(call);
  norm(call, link.own(buffers.normed), x, at_.norm1, at_.norm1_bias, buffers.mean, buffers.reciprocal);
  if (call.gradients) link.gather(buffers.normed);
  linear_parameters_backward(call, buffers.dqkv, buffers.normed, at_.qkv, at_.qkv_bias, qkv_width(), hidden);
  const Ref dnormed = buffers.normed;
  kernels.linear_backward_input(dnormed, buffers.dqkv, weights.at(at_.qkv), tokens, qkv_width(), hidden,
                                false);
  link.sum(dnormed);
  norm_backward(call, link.own(dnormed), x, at_.norm1, at_.norm1_bias, buffers, dx, dx);
}

// Gradients towards rotated query and key, and value, become one matrix of gradients towards the projections.
// A segment's rows of dk and dv are complete by now: later segments, which alone still see them, came first.
void TransformerBlock::split_gradients(const LayerCall& call, const Saved& saved,
                                       const BackwardBuffers& buffers, const KeyValues& kv) const {
  const int64_t q = config_.q_width(), k = config_.kv_width(), width = qkv_width();
  const int64_t heads = config_.num_attention_heads, groups = config_.num_query_groups,
                tokens = call.batch.count();
  KernelSet& kernels = call.kernels;

  if (config_.qk_norm()) {
    rotate(call, buffers.dquery, q, buffers.dquery, q, 0, tokens, heads, true);
    head_norm_backward(call, buffers, buffers.dqkv, saved.query_raw, buffers.dquery, at_.q_norm, heads,
                       buffers.head_reciprocal);
  } else if (config_.rope()) {
    rotate(call, buffers.dqkv, width, buffers.dquery, q, 0, tokens, heads, true);
  } else {
    kernels.convert_rows(buffers.dqkv, width, buffers.dquery, q, tokens, q);
  }

  for_each_run(call.batch.micro_batch, call.batch.sequence, kv.rows, kv.offset,
               [&](int64_t to, int64_t from, int64_t rows) {
                 const ConstRef dk = ref(static_cast<const float*>(kv.dk + from * k));
                 const ConstRef dv = ref(static_cast<const float*>(kv.dv + from * k));
                 const Ref dprojected = buffers.dqkv.at(to * width + q);
                 if (config_.qk_norm())
                   rotate(call, ref(buffers.dkey + to * k), k, dk, k, to, rows, groups, true);
                 else if (config_.rope())
                   rotate(call, dprojected, width, dk, k, to, rows, groups, true);
                 else
                   kernels.convert_rows(dprojected, width, dk, k, rows, k);
                 kernels.convert_rows(dprojected.at(k), width, dv, k, rows, k);
               });
  if (config_.qk_norm()) {
    // Only the statistics are wanted.
    head_norm(call, buffers.key_scratch, saved.key_raw, at_.k_norm, tokens, groups, buffers.head_reciprocal);
    head_norm_backward(call, buffers, buffers.dqkv.at(q), saved.key_raw,
                       ref(static_cast<const float*>(buffers.dkey)), at_.k_norm, groups,
                       buffers.head_reciprocal);
  }
}

void TransformerBlock::norm_backward(const LayerCall& call, ConstRef dy, ConstRef x, int64_t weight,
                                     int64_t bias, const BackwardBuffers& buffers, ConstRef dresidual,
                                     Ref dx) const {
  const RowShape rows{.outer = resident_tokens(call.batch.count(), part_),
                      .inner = 1,
                      .columns = config_.hidden_size,
                      .outer_stride = config_.hidden_size};
  call.kernels.norm_backward({.kind = norm_kind(),
                              .x_shape = rows,
                              .dy_shape = rows,
                              .dx_shape = rows,
                              .x = x,
                              .weight = ConstRef(call.weights).at(weight),
                              .dy = dy,
                              .mean = buffers.mean,
                              .reciprocal = buffers.reciprocal,
                              .dresidual = dresidual,
                              .dx = dx,
                              .dweight = norm_gradient(call, buffers, weight),
                              .dbias = norm_gradient(call, buffers, bias)});
}

void TransformerBlock::head_norm_backward(const LayerCall& call, const BackwardBuffers& buffers, Ref dx,
                                          ConstRef x, ConstRef dy, int64_t weight, int64_t heads,
                                          const float* reciprocal) const {
  const RowShape contiguous{.outer = call.batch.count(),
                            .inner = heads,
                            .columns = config_.head_dim,
                            .outer_stride = heads * config_.head_dim};
  RowShape strided = contiguous;
  strided.outer_stride = qkv_width();
  call.kernels.norm_backward({.kind = NormKind::kRms,
                              .x_shape = contiguous,
                              .dy_shape = contiguous,
                              .dx_shape = strided,
                              .x = x,
                              .weight = ConstRef(call.weights).at(weight),
                              .dy = dy,
                              .mean = nullptr,
                              .reciprocal = reciprocal,
                              .dresidual = {},
                              .dx = dx,
                              .dweight = norm_gradient(call, buffers, weight),
                              .dbias = nullptr});
}

}  // namespace trainer
