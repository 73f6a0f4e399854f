// Attention and its backward pass as graphs of cuDNN operations: those that its fused kernels are recognised
// by.
#pragma once

#if defined(TRAINER_CUDA)

#include <compare>
#include <cstdint>

#include "cuda/cudnn_graph.h"

namespace trainer::cuda {

// Whole causal sequences of bf16. Batch rows follow one another, `..._row` elements apart; tokens of a row
// are
// `..._token` elements apart; heads are contiguous.
struct CudnnAttentionShape {
  int64_t batch = 0, length = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int64_t q_token = 0, q_row = 0, k_token = 0, k_row = 0, v_token = 0, v_row = 0;
  int64_t out_token = 0, out_row = 0;            // of out and dout
  int64_t gradient_token = 0, gradient_row = 0;  // of dk and dv
  int64_t statistic_row = 0;                     // of log_sum_exp; [heads, length] within a row
  auto operator<=>(const CudnnAttentionShape&) const = default;
};

// What a plan is given.
enum CudnnAttentionId : int64_t {
  kQueries = 1,  // [batch, length, heads, head_dim]
  kKeys,
  kValues,
  kOut,
  kLogSumExp,  // [batch, heads, length] fp32
  kScale,      // number
  kMasked,     // number: -infinity
  kOne,        // number: 1
  kOutGradient,
  kQueryGradient,  // as kQueries
  kKeyGradient,    // [batch, length, kv_heads, head_dim] bf16
  kValueGradient,
  kOutSums,  // scratch, [batch, heads, length] fp32: sums of dout * out over a head
};

// kQueries, kKeys, kValues, kScale, kMasked -> kOut, kLogSumExp.
CudnnGraph attention_forward_graph(const CudnnAttentionShape& s);
// All but the gradients and kOutSums -> those. Slopes of the scores, [batch, heads, length, length] in bf16,
// are in the plan's workspace, so that dq is one sum in a fixed order; without them cuDNN adds its parts as
// they come.
CudnnGraph attention_backward_graph(const CudnnAttentionShape& s);

}  // namespace trainer::cuda

#endif
