// Layers: descriptions with explicit forward, recover and backward. A layer owns no weights and keeps no
// state; every call is given views of its weights, gradients and saved tensors. Layer 0 is the embedding, 1
// ... L the transformer blocks, L + 1 the head (final norm, classifier and loss).
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/catalogue.h"
#include "device/device.h"
#include "model/config.h"
#include "model/rope.h"
#include "ops/kernel_set.h"

namespace trainer {

enum class InitKind : uint8_t { kNormal, kZero, kOne };

// Which part of a model this rank computes, of the ranks that share every layer: attention heads, the
// feed-forward layer's width and the vocabulary are cut into `size` parts.
struct TensorPart {
  int size = 1, rank = 0;
  // Between blocks and in norms, each rank holds 1 / size of the tokens, in rank order, instead of all.
  bool sequence = false;
};

// Rows and columns of a logical tensor; a vector is one column.
struct Rectangle {
  int64_t row = 0, rows = 0, column = 0, columns = 0;
};

// One logical parameter tensor, named as in the Hugging Face model folder.
struct ParameterSpec {
  std::string name;
  std::vector<int64_t> shape;  // logical shape as libtrainer holds it: a matrix is [output, input]
  int64_t offset = 0;          // elements, in the layer's flat block
  InitKind init = InitKind::kNormal;
  double init_std = 0;
  bool transposed_on_disk = false;  // GPT-2's Conv1D stores [input, output]
  // What this rank holds, one after the other, row by row; empty: all of it, and so does every tensor rank.
  std::vector<Rectangle> held = {};
  int64_t reserved = 0;  // elements in the block, where other ranks hold more of it; the rest stays zero
  bool replicated() const { return held.empty(); }
  // Weight decay touches matrices only, embeddings included.
  bool decays() const { return shape.size() >= 2; }
  int64_t logical_count() const {
    int64_t n = 1;
    for (int64_t s : shape) n *= s;
    return n;
  }
  // Elements held here.
  int64_t count() const {
    if (held.empty()) return logical_count();
    int64_t n = 0;
    for (const Rectangle& r : held) n += r.rows * r.columns;
    return n;
  }
};

// Where they lie, for a catalogue: the same on every tensor rank.
inline std::vector<ParameterExtent> extents(const std::vector<ParameterSpec>& parameters) {
  std::vector<ParameterExtent> extents;
  for (const ParameterSpec& p : parameters) extents.push_back({p.offset, std::max(p.reserved, p.count())});
  return extents;
}

// Elements of a logical tensor that lie one after the other where they are held: `runs` times `length` of
// them, the beginnings `stride` apart in the logical tensor.
struct HeldPiece {
  int64_t begin = 0;   // logical index of the first
  int64_t offset = 0;  // among the elements held here
  int64_t length = 0, runs = 1, stride = 0;
};
// Elements [begin, begin + count) of those held here, in order.
std::vector<HeldPiece> held_pieces(const ParameterSpec& parameter, int64_t begin, int64_t count);
inline std::vector<HeldPiece> held_pieces(const ParameterSpec& parameter) {
  return held_pieces(parameter, 0, parameter.count());
}
// Calls visit(logical index, index among those held, elements) for each run that is contiguous in both.
template <class Visit>
void for_each_held_run(const ParameterSpec& parameter, int64_t begin, int64_t count, Visit visit) {
  for (const HeldPiece& piece : held_pieces(parameter, begin, count))
    for (int64_t r = 0; r < piece.runs; ++r)
      visit(piece.begin + r * piece.stride, piece.offset + r * piece.length, piece.length);
}
template <class Visit>
void for_each_held_run(const ParameterSpec& parameter, Visit visit) {
  for_each_held_run(parameter, 0, parameter.count(), visit);
}

// Per-micro-batch inputs. Arrays are [micro_batch * sequence]; a segment's view holds the segment's rows
// only.
struct BatchView {
  int64_t micro_batch = 0, sequence = 0;
  // Where the kernels reach them.
  const int32_t* tokens = nullptr;
  const int32_t* labels = nullptr;  // -100: ignored
  const int32_t* positions = nullptr;
  // As in AttentionShape, over the whole sequences even in a segment's view. Empty: each row is one document.
  std::span<const int32_t> document_starts;
  // Where kernels compute on memory that the host does not reach: tokens and positions for the host.
  const int32_t *host_tokens = nullptr, *host_positions = nullptr;
  int64_t count() const { return micro_batch * sequence; }
  int32_t token(int64_t t) const { return (host_tokens ? host_tokens : tokens)[t]; }
  int32_t position(int64_t t) const { return (host_positions ? host_positions : positions)[t]; }
};

// Keys and values of the whole sequence, for a sequence cut into segments (forward in order, backward in
// reverse). Null: the sequence is one segment and they live among the saved tensors.
struct Carry {
  Ref k, v;  // [micro_batch, whole_sequence, kv_width]
  // Same shape, fp32 accumulators, zeroed before the last segment's backward.
  float *dk = nullptr, *dv = nullptr;
  int64_t whole_sequence = 0;
  int64_t offset = 0;  // of this segment
};

// Everything one call may touch. Nothing is owned.
struct LayerCall {
  KernelSet& kernels;
  BatchView batch;
  Ref weights;                 // the layer's flat block
  Ref shared_weights;          // the block it shares (tied head: the embedding's)
  float* gradients = nullptr;  // flat fp32, same layout as weights; null: frozen
  float* shared_gradients = nullptr;
  // They hold nothing yet: the head's forward and the other layers' backward write them, padding too, instead
  // of adding. Where the head is told so it is given all of `saved`.
  bool first_gradients = false, first_shared_gradients = false;
  // One per catalogue entry, in its order. Forward leaves out what is null (empty: all of it); key and value
  // are not used with a carry. Recover and backward are given all of them.
  std::span<const Ref> saved;
  std::span<std::byte> temporary;  // catalogue().temporary_bytes, 64-byte aligned
  Carry* carry = nullptr;
  uint64_t kept = 0;              // recover: bit i says that saved[i] still holds its values
  float* token_losses = nullptr;  // head: [tokens], the loss of each label, 0 where ignored; may be null
  TensorGroup* tensor = nullptr;  // of a model that is cut over several ranks
  DeviceQueue& queue = host_device().compute();  // that the kernels work in
  RopeTables rope = {};  // the model's tables where the kernels reach them; null: where the model has them
};

class Layer {
 public:
  virtual ~Layer() = default;
  // Ascending offsets. Each begins on a 64-byte boundary, in fp32 and in bf16, save those that one operation
  // takes together (q, k, v; gate, up): they follow one another directly.
  virtual const std::vector<ParameterSpec>& parameters() const = 0;
  virtual int64_t block_size() const = 0;  // elements of the flat block, padding included; padding stays zero
  // For micro-batches of [micro_batch, sequence] in `dtype`. `temporary_bytes` is enough for any call of that
  // size, with or without saved tensors and carry.
  virtual LayerCatalogue catalogue(int64_t micro_batch, int64_t sequence, DType dtype) const = 0;

  // With TensorPart::sequence, x, y, dx and dy hold this rank's tokens only.
  //
  // y [tokens, hidden] from x [tokens, hidden] (null for the embedding; not the same memory as y); fills
  // `saved`. The head's y is null and the sum of its losses is returned; when `call.saved` is given it also
  // runs the classifier's backward, which adds the gradient of the classifier's weight. With nothing saved it
  // is an evaluation.
  virtual ClassifierResult forward(const LayerCall& call, ConstRef x, Ref y) const = 0;
  // Fills `saved` again from the layer's input, to the same bits as forward did; adds to no gradient.
  virtual void recover(const LayerCall& call, ConstRef x) const = 0;
  // dx [tokens, hidden] (null for the embedding) from dy (null for the head); adds to the gradients. dx may
  // be dy.
  virtual void backward(const LayerCall& call, ConstRef x, ConstRef dy, Ref dx) const = 0;
};

class HeadLayer;  // model/layers.h

class Model {
 public:
  // `positions` bounds every call's positions (the longest sequence); 0: config.max_position_embeddings.
  // Rotary tables are made for that many. Throws InputError when the model cannot be cut as `part` says.
  explicit Model(ModelConfig config, int64_t positions = 0, TensorPart part = {});
  ~Model();
  Model(Model&&) noexcept;

  const ModelConfig& config() const { return config_; }  // of the whole model
  const TensorPart& part() const { return part_; }
  int layer_count() const { return static_cast<int>(layers_.size()); }  // L + 2
  const Layer& layer(int index) const { return *layers_[static_cast<size_t>(index)]; }
  const HeadLayer& head() const;
  // Bounds for the workspace of every call with these micro-batches.
  WorkspaceShape workspace_shape(int64_t micro_batch, int64_t sequence, DType dtype) const;
  int64_t parameter_count() const;  // each logical parameter once
  // Model FLOPs of one training step per token: 6 x matrices + attention, causal halved.
  double flops_per_token(int64_t sequence) const;
  // In host memory; null without rotary positions.
  RopeTables rope_tables() const;
  int64_t table_bytes() const { return static_cast<int64_t>(rope_tables_.size() * sizeof(float)); }

 private:
  ModelConfig config_;
  TensorPart part_;
  std::vector<float> rope_tables_;
  int64_t positions_ = 0;  // of the tables
  std::vector<std::unique_ptr<Layer>> layers_;
};

// Fills `values` [count] with the initial value of elements [begin, begin + count) of `parameter`. Depends on
// (seed, parameter name, global element index) only.
void initialize_parameter(const ParameterSpec& parameter, uint64_t seed, int64_t begin,
                          std::span<float> values);
// The same for elements [begin, begin + count) of those held here.
void initialize_held(const ParameterSpec& parameter, uint64_t seed, int64_t begin, std::span<float> values);

}  // namespace trainer
