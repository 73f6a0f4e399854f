#include "model/inference.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "model/scratch.h"

namespace trainer {
namespace {

// A prompt is read in pieces of this many tokens: enough for full-speed products, few enough that the
// activations of a long prompt stay small.
constexpr int64_t kLongestChunk = 256;

}  // namespace

Decoder::Decoder(const Model& model, KernelSet& kernels, std::vector<Ref> weights, int64_t max_positions)
    : model_(model),
      kernels_(kernels),
      weights_(std::move(weights)),
      dtype_(weights_.at(0).dtype),
      max_positions_(max_positions),
      chunk_(std::min(max_positions, kLongestChunk)) {
  require(weights_.size() == static_cast<size_t>(model.layer_count()), "{} weight blocks for {} layers",
          weights_.size(), model.layer_count());
  const ModelConfig& config = model.config();
  int64_t temporary_bytes = model.head().logits_temporary_bytes(1, dtype_);
  for (int i = 0; i < model.layer_count(); ++i)
    temporary_bytes = std::max(temporary_bytes, model.layer(i).catalogue(1, chunk_, dtype_).temporary_bytes);
  WorkspaceShape shape = model.workspace_shape(1, chunk_, dtype_);
  shape.sequence = max_positions;

  std::span<std::byte> workspace;
  const auto lay_out = [&](Scratch& scratch) {
    const auto bytes = [&](int64_t count) {
      void* data = scratch.take((count + 3) / 4, DType::kF32).data;
      return std::span(static_cast<std::byte*>(data), data ? static_cast<size_t>(count) : 0);
    };
    x_ = scratch.take(chunk_ * config.hidden_size, dtype_);
    y_ = scratch.take(chunk_ * config.hidden_size, dtype_);
    temporary_ = bytes(temporary_bytes);
    workspace = bytes(static_cast<int64_t>(kernels.workspace_bytes(shape)));
    carries_.clear();
    for (int64_t i = 0; i < config.num_layers; ++i)
      carries_.push_back({.k = scratch.take(max_positions * config.kv_width(), dtype_),
                          .v = scratch.take(max_positions * config.kv_width(), dtype_),
                          .whole_sequence = max_positions});
  };
  Scratch measure;
  lay_out(measure);
  memory_.resize(static_cast<size_t>(measure.peak() + Scratch::kAlignment));
  void* begin = memory_.data();
  size_t space = memory_.size();
  std::align(Scratch::kAlignment, static_cast<size_t>(measure.peak()), begin, space);
  Scratch memory(std::span(static_cast<std::byte*>(begin), space));
  lay_out(memory);
  kernels_.grant_workspace(workspace);
}

std::vector<float> Decoder::step(std::span<const int32_t> tokens) {
  require(!tokens.empty(), "decoding needs at least one token");
  if (position_ + static_cast<int64_t>(tokens.size()) > max_positions_)
    input_error("the prompt and the text to generate are longer than {} tokens: shorten either",
                max_positions_);
  int64_t last = 0;
  while (!tokens.empty()) {
    last = std::min(chunk_, static_cast<int64_t>(tokens.size()));
    forward(tokens.first(static_cast<size_t>(last)));
    tokens = tokens.subspan(static_cast<size_t>(last));
  }
  std::vector<float> logits(static_cast<size_t>(model_.config().vocabulary_size));
  const LayerCall call{.kernels = kernels_,
                       .batch = {},
                       .weights = weights_.back(),
                       .shared_weights = weights_.front(),
                       .saved = {},
                       .temporary = temporary_};
  model_.head().logits(call, x_.at((last - 1) * model_.config().hidden_size), 1, logits.data());
  return logits;
}

// Leaves the last block's output in x_.
void Decoder::forward(std::span<const int32_t> tokens) {
  const int64_t count = static_cast<int64_t>(tokens.size());
  std::vector<int32_t> positions(tokens.size());
  std::iota(positions.begin(), positions.end(), static_cast<int32_t>(position_));
  LayerCall call{.kernels = kernels_,
                 .batch = {.micro_batch = 1,
                           .sequence = count,
                           .tokens = tokens.data(),
                           .positions = positions.data(),
                           .document_starts = {}},
                 .weights = weights_.front(),
                 .shared_weights = {},
                 .saved = {},
                 .temporary = temporary_};
  model_.layer(0).forward(call, {}, x_);
  for (size_t i = 0; i < carries_.size(); ++i) {
    carries_[i].offset = position_;
    call.weights = weights_[i + 1];
    call.carry = &carries_[i];
    model_.layer(static_cast<int>(i) + 1).forward(call, x_, y_);
    std::swap(x_, y_);
  }
  position_ += count;
}

}  // namespace trainer
