// The kinds of layers a model is made of.
#pragma once

#include <memory>

#include "model/layer.h"
#include "model/rope.h"

namespace trainer {

std::unique_ptr<Layer> make_embedding_layer(const ModelConfig& config, const TensorPart& part = {});
// Block `index` of 0 ... num_layers - 1. `rope` outlives the layer.
std::unique_ptr<Layer> make_transformer_block(const ModelConfig& config, int64_t index,
                                              const RopeTables& rope, const TensorPart& part = {});

// Final norm and classifier.
class HeadLayer : public Layer {
 public:
  // logits [rows, vocabulary] of rows x [rows, hidden]. Needs `weights`, `shared_weights` when tied, and
  // `temporary` of logits_temporary_bytes(rows, dtype); the rest of `call` is not read. In bf16 the logits
  // are those of bf16 products. Of models that are not cut.
  virtual void logits(const LayerCall& call, ConstRef x, int64_t rows, float* logits) const = 0;
  virtual int64_t logits_temporary_bytes(int64_t rows, DType dtype) const = 0;
};
std::unique_ptr<HeadLayer> make_head_layer(const ModelConfig& config, const TensorPart& part = {});

}  // namespace trainer
