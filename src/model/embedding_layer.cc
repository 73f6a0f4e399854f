#include "base/error.h"
#include "model/layers.h"
#include "model/parameter_layout.h"

namespace trainer {
namespace {

class EmbeddingLayer final : public Layer {
 public:
  explicit EmbeddingLayer(const ModelConfig& config)
      : hidden_(config.hidden_size),
        vocabulary_(config.vocabulary_size),
        learned_positions_(config.rope() ? 0 : config.max_position_embeddings) {
    const char* name = config.rope() ? "model.embed_tokens.weight" : "transformer.wte.weight";
    // A tied head takes the block's beginning as its classifier: the token table comes first.
    layout_.add(matrix_spec(name, vocabulary_, hidden_, config.init_std));
    if (learned_positions_)
      position_table_ =
          layout_.add(matrix_spec("transformer.wpe.weight", learned_positions_, hidden_, config.init_std));
  }

  const std::vector<ParameterSpec>& parameters() const override { return layout_.parameters(); }
  int64_t block_size() const override { return layout_.size(); }

  LayerCatalogue catalogue(int64_t micro_batch, int64_t sequence, DType dtype) const override {
    LayerCatalogue catalogue;
    catalogue.name = "embedding";
    catalogue.parameters = block_size();
    catalogue.tensors = extents(parameters());
    catalogue.output_bytes = micro_batch * sequence * hidden_ * static_cast<int64_t>(size_of(dtype));
    return catalogue;
  }

  ClassifierResult forward(const LayerCall& call, ConstRef, Ref y) const override {
    check_inputs(call.batch);
    call.kernels.embedding_forward(y, call.batch.tokens, call.weights, call.batch.positions,
                                   position_table(call), call.batch.count(), hidden_);
    return {};
  }

  void recover(const LayerCall&, ConstRef) const override {}

  void backward(const LayerCall& call, ConstRef, ConstRef dy, Ref) const override {
    if (!call.gradients) return;
    call.kernels.embedding_backward(call.gradients, call.batch.tokens,
                                    learned_positions_ ? call.gradients + position_table_ : nullptr,
                                    call.batch.positions, dy, call.batch.count(), hidden_);
  }

 private:
  ConstRef position_table(const LayerCall& call) const {
    return learned_positions_ ? ConstRef(call.weights).at(position_table_) : ConstRef{};
  }

  // The last look at numbers that came from files before they become addresses.
  void check_inputs(const BatchView& batch) const {
    for (int64_t t = 0; t < batch.count(); ++t) {
      if (batch.tokens[t] < 0 || batch.tokens[t] >= vocabulary_)
        input_error(
            "token {} at row {}, column {} of a micro-batch is outside the model's vocabulary of {}: the "
            "dataset was made with another tokenizer than the model's",
            batch.tokens[t], t / batch.sequence, t % batch.sequence, vocabulary_);
      if (learned_positions_ && (batch.positions[t] < 0 || batch.positions[t] >= learned_positions_))
        input_error("position {} is outside the model's {} learned positions: shorten the sequence",
                    batch.positions[t], learned_positions_);
    }
  }

  int64_t hidden_, vocabulary_, learned_positions_, position_table_ = 0;
  ParameterLayout layout_;
};

}  // namespace

std::unique_ptr<Layer> make_embedding_layer(const ModelConfig& config) {
  return std::make_unique<EmbeddingLayer>(config);
}

}  // namespace trainer
