#include "base/error.h"
#include "model/layers.h"
#include "model/parameter_layout.h"
#include "model/tensor_part.h"

namespace trainer {
namespace {

class EmbeddingLayer final : public Layer {
 public:
  EmbeddingLayer(const ModelConfig& config, const TensorPart& part)
      : part_(part),
        hidden_(config.hidden_size),
        vocabulary_(config.vocabulary_size),
        words_(vocabulary_range(config.vocabulary_size, part)),
        learned_positions_(config.rope() ? 0 : config.max_position_embeddings) {
    const char* name = config.rope() ? "model.embed_tokens.weight" : "transformer.wte.weight";
    // A tied head takes the block's beginning as its classifier: the token table comes first.
    layout_.add(cut_words(matrix_spec(name, vocabulary_, hidden_, config.init_std), part),
                words_.most * hidden_);
    if (learned_positions_)
      position_table_ =
          layout_.add(matrix_spec("transformer.wpe.weight", learned_positions_, hidden_, config.init_std));
  }

  const std::vector<ParameterSpec>& parameters() const override { return layout_.parameters(); }
  int64_t block_size() const override { return layout_.size(); }

  LayerCatalogue catalogue(int64_t micro_batch, int64_t sequence, DType dtype) const override {
    const int64_t tokens = micro_batch * sequence;
    LayerCatalogue catalogue;
    catalogue.name = "embedding";
    catalogue.parameters = block_size();
    catalogue.tensors = extents(parameters());
    catalogue.output_bytes = resident_tokens(tokens, part_) * hidden_ * static_cast<int64_t>(size_of(dtype));
    if (part_.size == 1) return catalogue;
    Scratch scratch;
    lay_out(scratch, tokens, dtype);
    catalogue.temporary_bytes = scratch.peak();
    const ExchangeCount exchange(part_, tokens, hidden_, dtype);
    catalogue.forward_exchange = exchange.sum();
    catalogue.backward_exchange = exchange.gather();
    return catalogue;
  }

  ClassifierResult forward(const LayerCall& call, ConstRef, Ref y) const override {
    check_inputs(call.batch);
    if (part_.size > 1) {
      forward_part(call, y);
    } else {
      call.kernels.embedding_forward(y, call.batch.tokens, call.weights, call.batch.positions,
                                     position_table(call), call.batch.count(), hidden_);
    }
    return {};
  }

  void recover(const LayerCall&, ConstRef) const override {}

  void backward(const LayerCall& call, ConstRef, ConstRef dy, Ref) const override {
    if (!call.gradients) return;
    if (call.first_gradients)
      call.kernels.fill_zero(call.gradients, static_cast<size_t>(block_size()) * sizeof(float));
    const int32_t* tokens = call.batch.tokens;
    if (part_.size > 1) {
      const TensorLink link(call, part_, hidden_);
      Scratch scratch(call.temporary);
      const Buffers buffers = lay_out(scratch, call.batch.count(), dy.dtype);
      find_own_words(call, buffers.tokens);
      tokens = buffers.tokens;
      if (link.sequence()) {
        call.kernels.convert(link.own(buffers.all), dy, link.resident() * hidden_);
        link.gather(buffers.all);
        dy = buffers.all;
      }
    }
    // Every rank has the gradient of all tokens, so that of the positions is the same on all.
    call.kernels.embedding_backward(call.gradients, tokens,
                                    learned_positions_ ? call.gradients + position_table_ : nullptr,
                                    call.batch.positions, dy, call.batch.count(), hidden_);
  }

 private:
  // Of a rank that holds a part of the words.
  struct Buffers {
    int32_t* tokens = nullptr;  // [tokens]: rows of the own words, -1 for others
    Ref all;                    // [tokens, hidden]; sequence parallelism only
    Ref positions;              // [resident, hidden]; learned positions only
  };

  Buffers lay_out(Scratch& scratch, int64_t tokens, DType dtype) const {
    static_assert(sizeof(int32_t) == sizeof(float));
    Buffers buffers;
    buffers.tokens = static_cast<int32_t*>(scratch.take(tokens, DType::kF32).data);
    if (part_.sequence) buffers.all = scratch.take(tokens * hidden_, dtype);
    if (learned_positions_) buffers.positions = scratch.take(resident_tokens(tokens, part_) * hidden_, dtype);
    return buffers;
  }

  void find_own_words(const LayerCall& call, int32_t* tokens) const {
    write_on_host(call.queue, tokens, static_cast<size_t>(call.batch.count()), [&](std::span<int32_t> own) {
      for (size_t t = 0; t < own.size(); ++t) {
        const int64_t word = call.batch.token(static_cast<int64_t>(t)) - words_.first;
        own[t] = word >= 0 && word < words_.count ? static_cast<int32_t>(word) : -1;
      }
    });
  }

  // One rank has the token's row and all others zeros: the sum is exact. Positions, which all ranks hold, are
  // added after it.
  void forward_part(const LayerCall& call, Ref y) const {
    const TensorLink link(call, part_, hidden_);
    Scratch scratch(call.temporary);
    const Buffers buffers = lay_out(scratch, call.batch.count(), y.dtype);
    find_own_words(call, buffers.tokens);
    const Ref all = link.sequence() ? buffers.all : y;
    call.kernels.embedding_forward(all, buffers.tokens, call.weights, nullptr, {}, call.batch.count(),
                                   hidden_);
    link.sum(all);
    if (link.sequence()) call.kernels.convert(y, link.own(all), link.resident() * hidden_);
    if (!learned_positions_) return;
    const int32_t* positions =
        call.batch.positions + (link.sequence() ? part_.rank * link.resident() : int64_t{0});
    call.kernels.embedding_forward(buffers.positions, positions, position_table(call), nullptr, {},
                                   link.resident(), hidden_);
    call.kernels.add(y, buffers.positions, link.resident() * hidden_);
  }

  ConstRef position_table(const LayerCall& call) const {
    return learned_positions_ ? ConstRef(call.weights).at(position_table_) : ConstRef{};
  }

  // The last look at numbers that came from files before they become addresses.
  void check_inputs(const BatchView& batch) const {
    for (int64_t t = 0; t < batch.count(); ++t) {
      if (batch.token(t) < 0 || batch.token(t) >= vocabulary_)
        input_error(
            "token {} at row {}, column {} of a micro-batch is outside the model's vocabulary of {}: the "
            "dataset was made with another tokenizer than the model's",
            batch.token(t), t / batch.sequence, t % batch.sequence, vocabulary_);
      if (learned_positions_ && (batch.position(t) < 0 || batch.position(t) >= learned_positions_))
        input_error("position {} is outside the model's {} learned positions: shorten the sequence",
                    batch.position(t), learned_positions_);
    }
  }

  TensorPart part_;
  int64_t hidden_, vocabulary_;
  VocabularyRange words_;
  int64_t learned_positions_, position_table_ = 0;
  ParameterLayout layout_;
};

}  // namespace

std::unique_ptr<Layer> make_embedding_layer(const ModelConfig& config, const TensorPart& part) {
  return std::make_unique<EmbeddingLayer>(config, part);
}

}  // namespace trainer
