#include <algorithm>

#include "model/layers.h"
#include "model/parameter_layout.h"
#include "model/scratch.h"
#include "model/tensor_part.h"
#include "ops/classifier_chunk.h"
#include "ops/softmax_part.h"

namespace trainer {
namespace {

// What the forward pass leaves for the backward pass, in catalogue order.
enum SavedIndex : size_t { kNormGradient, kReciprocal, kMean };

class HeadLayerImplementation final : public HeadLayer {
 public:
  HeadLayerImplementation(const ModelConfig& config, const TensorPart& part)
      : part_(part),
        hidden_(config.hidden_size),
        vocabulary_(config.vocabulary_size),
        words_(vocabulary_range(config.vocabulary_size, part)),
        norm_kind_(config.rms_norm() ? NormKind::kRms : NormKind::kLayer),
        epsilon_(static_cast<float>(config.norm_epsilon)),
        tied_(config.tie_word_embeddings),
        embedding_block_size_(make_embedding_layer(config, part)->block_size()) {
    if (norm_kind_ == NormKind::kRms) {
      norm_ = layout_.add(gain_spec("model.norm.weight", hidden_));
    } else {
      norm_ = layout_.add(gain_spec("transformer.ln_f.weight", hidden_));
      norm_bias_ = layout_.add(bias_spec("transformer.ln_f.bias", hidden_));
    }
    if (!tied_)
      classifier_ =
          layout_.add(cut_words(matrix_spec("lm_head.weight", vocabulary_, hidden_, config.init_std), part),
                      words_.most * hidden_);
  }

  const std::vector<ParameterSpec>& parameters() const override { return layout_.parameters(); }
  int64_t block_size() const override { return layout_.size(); }

  LayerCatalogue catalogue(int64_t micro_batch, int64_t sequence, DType dtype) const override {
    const int64_t tokens = micro_batch * sequence, resident = resident_tokens(tokens, part_);
    const double classifier_flops =
        2.0 * static_cast<double>(tokens * hidden_) * static_cast<double>(words_.most);
    LayerCatalogue catalogue;
    catalogue.name = "head";
    catalogue.parameters = block_size();
    catalogue.tensors = extents(parameters());
    if (tied_) {
      catalogue.shared_block = 0;
      catalogue.shared_parameters = embedding_block_size_;
    }
    catalogue.gradient_bytes = resident * hidden_ * static_cast<int64_t>(size_of(dtype));
    catalogue.saved.push_back({.name = "norm_gradient",
                               .bytes = resident * hidden_ * static_cast<int64_t>(size_of(dtype)),
                               .recompute_flops = 2 * classifier_flops});
    catalogue.saved.push_back({.name = "norm_reciprocal", .bytes = resident * 4});
    if (norm_kind_ == NormKind::kLayer)
      catalogue.saved.push_back({.name = "norm_mean", .bytes = resident * 4});
    Scratch scratch;
    lay_out(scratch, tokens, resident, dtype);
    catalogue.temporary_bytes = std::max(scratch.peak(), norm_parameters() * 4);
    // The classifier's backward runs within its forward, while a chunk of logits is at hand.
    catalogue.forward_flops = 3 * classifier_flops;
    const ExchangeCount exchange(part_, tokens, hidden_, dtype);
    const int64_t chunk = classifier_chunk_tokens(words_.most), chunks = (tokens + chunk - 1) / chunk;
    TensorExchange softmax = exchange.all_gather(tokens * static_cast<int64_t>(sizeof(SoftmaxPart)));
    if (part_.size > 1) softmax.count = static_cast<int>(chunks);
    for (const auto& one : {exchange.gather(), softmax, exchange.sum()}) catalogue.forward_exchange += one;
    catalogue.recover_exchange = catalogue.forward_exchange;
    if (part_.sequence) catalogue.backward_exchange = exchange.sum_all(norm_parameters());
    return catalogue;
  }

  ClassifierResult forward(const LayerCall& call, ConstRef x, Ref) const override {
    begin_gradients(call);
    return classify(call, x, classifier_gradient(call));
  }

  // The gradient of the classifier's weight was added by forward and is not added again.
  void recover(const LayerCall& call, ConstRef x) const override { classify(call, x, nullptr); }

  void backward(const LayerCall& call, ConstRef x, ConstRef, Ref dx) const override {
    const TensorLink link(call, part_, hidden_);
    const RowShape rows = row_shape(link.resident());
    // Of this rank's tokens only, with sequence parallelism.
    float* gradients = call.gradients;
    const int64_t norm_count = norm_parameters();
    if (gradients && link.sequence()) {
      Scratch scratch(call.temporary);
      gradients = scratch.take_f32(norm_count);
      call.kernels.fill_zero(gradients, static_cast<size_t>(norm_count) * sizeof(float));
    }
    call.kernels.norm_backward({.kind = norm_kind_,
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
                                .dweight = gradients ? gradients + norm_ : nullptr,
                                .dbias = gradients && norm_bias_ >= 0 ? gradients + norm_bias_ : nullptr});
    if (!gradients || !link.sequence()) return;
    link.sum_all(gradients, norm_count);
    call.kernels.add(ref(call.gradients), ref(static_cast<const float*>(gradients)), norm_count);
  }

  void logits(const LayerCall& call, ConstRef x, int64_t rows, float* logits) const override {
    require(part_.size == 1, "logits of a model that is cut over {} ranks", part_.size);
    Scratch scratch(call.temporary);
    const Buffers buffers = lay_out(scratch, rows, rows, x.dtype);
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
    lay_out(scratch, rows, rows, dtype);
    scratch.take(rows * hidden_, dtype);
    return scratch.peak();
  }

 private:
  struct Buffers {
    Ref normed;                                    // [tokens, hidden]
    Ref gradient;                                  // [tokens, hidden]; sequence parallelism only
    float *mean = nullptr, *reciprocal = nullptr;  // [resident]
  };

  Buffers lay_out(Scratch& scratch, int64_t tokens, int64_t resident, DType dtype) const {
    Buffers buffers;
    buffers.normed = scratch.take(tokens * hidden_, dtype);
    if (part_.sequence) buffers.gradient = scratch.take(tokens * hidden_, dtype);
    buffers.reciprocal = scratch.take_f32(resident);
    if (norm_kind_ == NormKind::kLayer) buffers.mean = scratch.take_f32(resident);
    return buffers;
  }

  // Elements from the block's beginning to the end of the norm's parameters.
  int64_t norm_parameters() const { return (norm_bias_ >= 0 ? norm_bias_ : norm_) + hidden_; }

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
    const TensorLink link(call, part_, hidden_);
    const int64_t tokens = call.batch.count();
    Scratch scratch(call.temporary);
    Buffers buffers = lay_out(scratch, tokens, link.resident(), x.dtype);
    const bool train = !call.saved.empty();
    Ref dx;
    if (train) {
      buffers.reciprocal = call.saved[kReciprocal].f32();
      if (norm_kind_ == NormKind::kLayer) buffers.mean = call.saved[kMean].f32();
      dx = link.sequence() ? buffers.gradient : call.saved[kNormGradient];
    }
    normalise(call, x, link.resident(), link.own(buffers.normed), buffers.mean, buffers.reciprocal);
    link.gather(buffers.normed);
    const ClassifierResult result = call.kernels.classifier(
        {.tokens = tokens,
         .hidden = hidden_,
         .vocabulary = words_.count,
         .x = buffers.normed,
         .weight = classifier_weight(call),
         .labels = call.batch.labels,
         .dx = dx,
         .dweight = train ? dweight : nullptr,
         .token_losses = call.token_losses,
         .part = {.group = link.cut() ? call.tensor : nullptr,
                  .first = words_.first,
                  .words = vocabulary_,
                  .most = words_.most},
         .accumulate = !(tied_ ? call.first_shared_gradients : call.first_gradients)});
    if (!train) return result;
    link.sum(dx);
    if (link.sequence())
      call.kernels.convert(call.saved[kNormGradient], link.own(dx), link.resident() * hidden_);
    return result;
  }

  // All that the classifier does not write. Where the embedding's gradients are shared, they are another
  // layer's and larger than the classifier.
  void begin_gradients(const LayerCall& call) const {
    if (call.gradients && call.first_gradients) layout_.clear_beside_matrices(call.kernels, call.gradients);
    if (!call.shared_gradients || !call.first_shared_gradients) return;
    const int64_t written = words_.count * hidden_;
    call.kernels.fill_zero(call.shared_gradients + written,
                           static_cast<size_t>(embedding_block_size_ - written) * sizeof(float));
  }

  ConstRef classifier_weight(const LayerCall& call) const {
    return tied_ ? ConstRef(call.shared_weights) : ConstRef(call.weights).at(classifier_);
  }
  float* classifier_gradient(const LayerCall& call) const {
    if (tied_) return call.shared_gradients;
    return call.gradients ? call.gradients + classifier_ : nullptr;
  }

  TensorPart part_;
  int64_t hidden_, vocabulary_;
  VocabularyRange words_;
  NormKind norm_kind_;
  float epsilon_;
  bool tied_;
  int64_t embedding_block_size_;
  int64_t norm_ = 0, norm_bias_ = -1, classifier_ = -1;
  ParameterLayout layout_;
};

}  // namespace

std::unique_ptr<HeadLayer> make_head_layer(const ModelConfig& config, const TensorPart& part) {
  return std::make_unique<HeadLayerImplementation>(config, part);
}

}  // namespace trainer
