// Inference with a model whose weights are all at hand: logits of given activations, and decoding token by
// token against cached keys and values.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/layers.h"

namespace trainer {

// One sequence. Memory is allocated on construction: the cache of max_positions keys and values per block,
// and one chunk's activations. Takes over the kernels' workspace for as long as it lives.
class Decoder {
 public:
  // `weights`: each layer's flat block, all of one dtype, which outlive the decoder. A tied head's own block
  // holds its norm; the classifier is layer 0's.
  Decoder(const Model& model, KernelSet& kernels, std::vector<Ref> weights, int64_t max_positions);

  // Appends tokens, at least one, and returns the logits [vocabulary] of what follows the last of them.
  // Throws InputError when max_positions would be passed.
  std::vector<float> step(std::span<const int32_t> tokens);
  int64_t position() const { return position_; }  // tokens so far

 private:
  void forward(std::span<const int32_t> tokens);

  const Model& model_;
  KernelSet& kernels_;
  std::vector<Ref> weights_;
  DType dtype_;
  int64_t max_positions_, chunk_, position_ = 0;
  std::vector<std::byte> memory_;
  Ref x_, y_;                   // [chunk, hidden]
  std::vector<Carry> carries_;  // one per block
  std::span<std::byte> temporary_;
};

}  // namespace trainer
