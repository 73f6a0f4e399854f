#include <algorithm>

#include "model/layers.h"
#include "model/parameter_layout.h"
#include "model/scratch.h"

namespace trainer {
namespace {

// What the forward pass leaves for the backward pass, in catalogue order.
enum SavedIndex : size_t { kNormGradient, kReciprocal, kMean };

class HeadLayerImplementation final : public HeadLayer {
 public:
  explicit HeadLayerImplementation(const ModelConfig& config)
      : hidden_(config.hidden_size),
        vocabulary_(config.vocabulary_size),
        norm_kind_(config.rms_norm() ? NormKind::kRms : NormKind::kLayer),
        epsilon_(static_cast<float>(config.norm_epsilon)),
        tied_(config.tie_word_embeddings),
        embedding_block_size_(make_embedding_layer(config)->block_size()) {
    if (norm_kind_ == NormKind::kRms) {
      norm_ = layout_.add(gain_spec("model.norm.weight", hidden_));
    } else {
      norm_ = layout_.add(gain_spec("transformer.ln_f.weight", hidden_));
      norm_bias_ = layout_.add(bias_spec("transformer.ln_f.bias", hidden_));
    }
    if (!tied_)
      classifier_ = layout_.add(matrix_spec("lm_head.weight", vocabulary_, hidden_, config.init_std));
  }

  const std::vector<ParameterSpec>& parameters() const override { return layout_.parameters(); }
  int64_t block_size() const override { return layout_.size(); }

  LayerCatalogue catalogue(int64_t micro_batch, int64_t sequence, DType dtype) const override {
    const int64_t tokens = micro_batch * sequence;
    const double classifier_flops =
        2.0 * static_cast<double>(tokens * hidden_) * static_cast<double>(vocabulary_);
    LayerCatalogue catalogue;
    catalogue.name = "head";
    catalogue.parameters = block_size();
    catalogue.tensors = extents(parameters());
    if (tied_) {
      catalogue.shared_block = 0;
      catalogue.shared_parameters = embedding_block_size_;
    }
    catalogue.gradient_bytes = tokens * hidden_ * static_cast<int64_t>(size_of(dtype));
    catalogue.saved.push_back({.name = "norm_gradient",
                               .bytes = tokens * hidden_ * static_cast<int64_t>(size_of(dtype)),
                               .recompute_flops = 2 * classifier_flops});
    catalogue.saved.push_back({.name = "norm_reciprocal", .bytes = tokens * 4});
    if (norm_kind_ == NormKind::kLayer) catalogue.saved.push_back({.name = "norm_mean", .bytes = tokens * 4});
    Scratch scratch;
    lay_out(scratch, tokens, dtype);
    catalogue.temporary_bytes = scratch.peak();
    // The classifier's backward runs within its forward, while a chunk of logits is at hand.
    catalogue.forward_flops = 3 * classifier_flops;
    return catalogue;
  }

  ClassifierResult forward(const LayerCall& call, ConstRef x, Ref) const override {
    return classify(call, x, classifier_gradient(call));
  }

  // The gradient of the classifier's weight was added by forward and is not added again.
  void recover(const LayerCall& call, ConstRef x) const override { classify(call, x, nullptr); }

  void backward(const LayerCall& call, ConstRef x, ConstRef, Ref dx) const override {
    const RowShape rows = row_shape(call.batch.count());
    call.kernels.norm_backward(
        {.kind = norm_kind_,
         .x_shape = rows,
         .dy_shape = rows,
         .dx_shape = rows,
         .x = x,
         .weight = ConstRef(call.weights).at(norm_),
         .dy = call.saved[kNormGradient],
         .mean = norm_kind_ == NormKind::kLayer ? call.saved[kMean].f32() : nullptr,
         .reciprocal = call.saved[kReciprocal].f32(),
         .dresidual = {},
         .dx = dx,
         .dweight = call.gradients ? call.gradients + norm_ : nullptr,
         .dbias = call.gradients && norm_bias_ >= 0 ? call.gradients + norm_bias_ : nullptr});
  }

  void logits(const LayerCall& call, ConstRef x, int64_t rows, float* logits) const override {
    Scratch scratch(call.temporary);
    const Buffers buffers = lay_out(scratch, rows, x.dtype);
    normalise(call, x, rows, buffers.normed, buffers.mean, buffers.reciprocal);
    // In chunks no wider than the other layers' products, so that the workspace need not grow for the
    // vocabulary.
    const Ref chunk = scratch.take(rows * hidden_, x.dtype);
    for (int64_t begin = 0; begin < vocabulary_; begin += hidden_) {
      const int64_t columns = std::min(hidden_, vocabulary_ - begin);
      call.kernels.linear_forward(chunk, buffers.normed, classifier_weight(call).at(begin * hidden_), {},
                                  rows, columns, hidden_);
      call.kernels.convert_rows(ref(logits + begin), vocabulary_, chunk, columns, rows, columns);
    }
  }

  int64_t logits_temporary_bytes(int64_t rows, DType dtype) const override {
    Scratch scratch;
    lay_out(scratch, rows, dtype);
    scratch.take(rows * hidden_, dtype);
    return scratch.peak();
  }

 private:
  struct Buffers {
    Ref normed;                                    // [tokens, hidden]
    float *mean = nullptr, *reciprocal = nullptr;  // [tokens]
  };

  Buffers lay_out(Scratch& scratch, int64_t tokens, DType dtype) const {
    Buffers buffers;
    buffers.normed = scratch.take(tokens * hidden_, dtype);
    buffers.reciprocal = scratch.take_f32(tokens);
    if (norm_kind_ == NormKind::kLayer) buffers.mean = scratch.take_f32(tokens);
    return buffers;
  }

  RowShape row_shape(int64_t tokens) const {
    return {.outer = tokens, .inner = 1, .columns = hidden_, .outer_stride = hidden_};
  }

  void normalise(const LayerCall& call, ConstRef x, int64_t tokens, Ref y, float* mean,
                 float* reciprocal) const {
    call.kernels.norm_forward({.kind = norm_kind_,
                               .x_shape = row_shape(tokens),
                               .y_shape = row_shape(tokens),
                               .x = x,
                               .delta = {},
                               .sum = {},
                               .weight = ConstRef(call.weights).at(norm_),
                               .bias = norm_bias_ >= 0 ? ConstRef(call.weights).at(norm_bias_) : ConstRef{},
                               .epsilon = epsilon_,
                               .y = y,
                               .mean = mean,
                               .reciprocal = reciprocal});
  }

  ClassifierResult classify(const LayerCall& call, ConstRef x, float* dweight) const {
    Scratch scratch(call.temporary);
    Buffers buffers = lay_out(scratch, call.batch.count(), x.dtype);
    const bool train = !call.saved.empty();
    if (train) {
      buffers.reciprocal = call.saved[kReciprocal].f32();
      if (norm_kind_ == NormKind::kLayer) buffers.mean = call.saved[kMean].f32();
    }
    normalise(call, x, call.batch.count(), buffers.normed, buffers.mean, buffers.reciprocal);
    return call.kernels.classifier({.tokens = call.batch.count(),
                                    .hidden = hidden_,
                                    .vocabulary = vocabulary_,
                                    .x = buffers.normed,
                                    .weight = classifier_weight(call),
                                    .labels = call.batch.labels,
                                    .dx = train ? call.saved[kNormGradient] : Ref{},
                                    .dweight = train ? dweight : nullptr,
                                    .token_losses = call.token_losses});
  }

  ConstRef classifier_weight(const LayerCall& call) const {
    return tied_ ? ConstRef(call.shared_weights) : ConstRef(call.weights).at(classifier_);
  }
  float* classifier_gradient(const LayerCall& call) const {
    if (tied_) return call.shared_gradients;
    return call.gradients ? call.gradients + classifier_ : nullptr;
  }

  int64_t hidden_, vocabulary_;
  NormKind norm_kind_;
  float epsilon_;
  bool tied_;
  int64_t embedding_block_size_;
  int64_t norm_ = 0, norm_bias_ = -1, classifier_ = -1;
  ParameterLayout layout_;
};

}  // namespace

std::unique_ptr<HeadLayer> make_head_layer(const ModelConfig& config) {
  return std::make_unique<HeadLayerImplementation>(config);
}

}  // namespace trainer
