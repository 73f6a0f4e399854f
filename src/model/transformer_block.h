// One transformer block: norm, attention, residual, norm, feed-forward, residual.
//
// Kept for the backward pass: the rotated query and key, the value, the attention output with its
// log-sum-exp, the residual stream after attention, and the feed-forward layer's input activations. Norm
// outputs and the activated feed-forward values are not kept: they would be a third of the bytes, and making
// them again reads and writes about as much memory as keeping them does (well under 1 % of a block's time at
// the sizes of real models).
//
// Cut over a tensor-parallel group, the projections out of the residual stream are cut by output and those
// back into it by input: widths below are this rank's, and products back into the stream are summed over the
// ranks. `resident` tokens are all tokens, or this rank's share with sequence parallelism.
#pragma once

#include <string>
#include <vector>

#include "model/layers.h"
#include "model/parameter_layout.h"
#include "model/scratch.h"
#include "model/tensor_part.h"

namespace trainer {

class TransformerBlock final : public Layer {
 public:
  TransformerBlock(const ModelConfig& config, int64_t index, const RopeTables& rope, const TensorPart& part);

  const std::vector<ParameterSpec>& parameters() const override { return layout_.parameters(); }
  int64_t block_size() const override { return layout_.size(); }
  LayerCatalogue catalogue(int64_t micro_batch, int64_t sequence, DType dtype) const override;
  ClassifierResult forward(const LayerCall& call, ConstRef x, Ref y) const override;
  void recover(const LayerCall& call, ConstRef x) const override;
  void backward(const LayerCall& call, ConstRef x, ConstRef dy, Ref dx) const override;

 private:
  // Where the parts begin in the flat block, in elements; -1: the model has none.
  struct Offsets {
    int64_t norm1 = -1, norm1_bias = -1;
    int64_t qkv = -1, qkv_bias = -1;  // rows of q, then k, then v
    int64_t q_norm = -1, k_norm = -1;
    int64_t output = -1, output_bias = -1;
    int64_t norm2 = -1, norm2_bias = -1;
    int64_t up = -1, up_bias = -1;  // rows of gate, then up, when gated
    int64_t down = -1, down_bias = -1;
  };

  // The saved tensors of a call by name; null where the call keeps none.
  struct Saved {
    Ref query_raw, key_raw;        // [tokens, q_width], [tokens, kv_width]; before their norms, qk_norm only
    Ref query;                     // [tokens, q_width], rotated; not with qk_norm
    Ref key, value;                // [tokens, kv_width]
    Ref attention;                 // [tokens, q_width]
    float* log_sum_exp = nullptr;  // [micro_batch, heads, sequence]
    Ref residual;                  // [resident, hidden]
    Ref up;                        // [tokens, up_width]
  };
  // Which groups of saved tensors a call makes.
  struct Wanted {
    bool projections = true, attention = true, residual = true, up = true, output = true;
  };
  struct ForwardBuffers {
    Ref normed;                                    // [tokens, hidden]
    float *mean = nullptr, *reciprocal = nullptr;  // [resident]
    float* head_reciprocal = nullptr;              // [tokens, heads]
    Ref qkv;                                       // [tokens, q_width + 2 kv_width]
    Ref activated;                                 // [tokens, ffn]
  };
  struct BackwardBuffers {
    float *mean = nullptr, *reciprocal = nullptr;  // [resident]
    Ref gathered;                        // [tokens, hidden]: dy of all tokens, sequence parallelism only
    float* partial = nullptr;            // gradients to be summed over the group, in the parameters' order
    Ref normed;                          // [tokens, hidden]: a norm's output, then the gradient towards it
    Ref activated;                       // [tokens, ffn]: activations, then the gradient towards them
    Ref dup;                             // [tokens, up_width]
    Ref dattention;                      // [tokens, q_width]
    Ref dquery;                          // [tokens, q_width]
    Ref query;                           // [tokens, q_width]: rotated query made again, qk_norm only
    float* head_reciprocal = nullptr;    // [tokens, heads]
    Ref key_scratch;                     // [tokens, kv_width]
    float* dkey = nullptr;               // [tokens, kv_width]
    float *dk = nullptr, *dv = nullptr;  // [tokens, kv_width], without a carry
    Ref dqkv;                            // [tokens, q_width + 2 kv_width]
  };
  // Keys and values a call attends to: the carry's, or its own.
  struct KeyValues {
    Ref k, v;
    float *dk = nullptr, *dv = nullptr;
    int64_t rows = 0;    // tokens from one batch row to the next
    int64_t offset = 0;  // of the call's first token in a batch row
  };

  Saved bind(const LayerCall& call) const;
  // Takes what the call needs beside its saved tensors; null saved tensors get a temporary, except the
  // residual.
  ForwardBuffers lay_out_forward(Scratch& scratch, int64_t tokens, DType dtype, Saved& saved,
                                 bool own_keys) const;
  BackwardBuffers lay_out_backward(Scratch& scratch, int64_t tokens, DType dtype, bool own_keys) const;

  void run(const LayerCall& call, ConstRef x, Ref y, Saved saved, const Wanted& wanted) const;
  void project_and_rotate(const LayerCall& call, ConstRef x, const Saved& saved,
                          const ForwardBuffers& buffers, const KeyValues& kv) const;
  void norm_and_rotate_query(const LayerCall& call, ConstRef raw, Ref query, float* head_reciprocal) const;
  void feed_forward_backward(const LayerCall& call, const Saved& saved, const BackwardBuffers& buffers,
                             ConstRef dy, Ref dresidual) const;
  void attention_backward(const LayerCall& call, const Saved& saved, const BackwardBuffers& buffers,
                          ConstRef x, Ref dx) const;
  void split_gradients(const LayerCall& call, const Saved& saved, const BackwardBuffers& buffers,
                       const KeyValues& kv) const;

  void linear(const LayerCall& call, Ref y, ConstRef x, int64_t weight, int64_t bias, int64_t n,
              int64_t k) const;
  // Adds to the weight's and bias's gradients from dy and x, or writes the weight's first one; nothing when
  // frozen.
  void linear_parameters_backward(const LayerCall& call, ConstRef dy, ConstRef x, int64_t weight,
                                  int64_t bias, int64_t n, int64_t k) const;
  void norm(const LayerCall& call, Ref y, ConstRef x, int64_t weight, int64_t bias, float* mean,
            float* reciprocal) const;
  // dx = gradient through the norm of x, plus dresidual; statistics come from `buffers`.
  void norm_backward(const LayerCall& call, ConstRef dy, ConstRef x, int64_t weight, int64_t bias,
                     const BackwardBuffers& buffers, ConstRef dresidual, Ref dx) const;
  // dx lies inside rows of qkv_width().
  void head_norm_backward(const LayerCall& call, const BackwardBuffers& buffers, Ref dx, ConstRef x,
                          ConstRef dy, int64_t weight, int64_t heads, const float* reciprocal) const;
  // Per-head norm of contiguous rows [tokens, heads * head_dim].
  void head_norm(const LayerCall& call, Ref y, ConstRef x, int64_t weight, int64_t tokens, int64_t heads,
                 float* reciprocal) const;
  void rotate(const LayerCall& call, Ref out, int64_t out_stride, ConstRef in, int64_t in_stride,
              int64_t first, int64_t tokens, int64_t heads, bool inverse) const;
  // Replicated parameters of whose gradient a rank computes a summand only, from its own tokens or heads.
  bool is_partial(const ParameterSpec& parameter) const;
  int64_t partial_gradients() const;
  // Where a norm's gradient goes: the layer's own, or the summands. Null when frozen.
  float* norm_gradient(const LayerCall& call, const BackwardBuffers& buffers, int64_t offset) const;
  // dy of all tokens from that of this rank's.
  ConstRef gather_gradient(const LayerCall& call, const BackwardBuffers& buffers, ConstRef dy) const;
  void add_partial_gradients(const LayerCall& call, const BackwardBuffers& buffers) const;
  TensorLink link(const LayerCall& call) const { return {call, part_, config_.hidden_size}; }
  AttentionShape attention_shape(const LayerCall& call, const KeyValues& kv) const;
  static KeyValues key_values(const LayerCall& call, const Saved& saved);

  int64_t up_width() const {
    return config_.gated_mlp() ? 2 * config_.ffn_hidden_size : config_.ffn_hidden_size;
  }
  int64_t qkv_width() const { return config_.q_width() + 2 * config_.kv_width(); }
  NormKind norm_kind() const { return config_.rms_norm() ? NormKind::kRms : NormKind::kLayer; }
  void check_positions(const BatchView& batch) const;

  ModelConfig config_;  // of this rank's part, without its JSON source
  TensorPart part_;
  std::string name_;
  RopeTables rope_;
  Offsets at_;
  ParameterLayout layout_;
};

}  // namespace trainer
