// Runs a whole model forward and backward in one process, layer by layer: the plainest use of the layers, for
// tests.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "model/layers.h"
#include "support/guarded_buffer.h"

namespace trainer {

// Whole sequences; arrays are [micro_batch * sequence].
struct TestBatch {
  int64_t micro_batch = 0, sequence = 0;
  std::vector<int32_t> tokens, labels, positions;
  std::vector<int32_t> document_starts;
};

// Every row one document.
inline TestBatch make_batch(int64_t micro_batch, int64_t sequence, std::vector<int32_t> tokens,
                            std::vector<int32_t> labels) {
  TestBatch batch{micro_batch, sequence, std::move(tokens), std::move(labels), {}, {}};
  for (int64_t t = 0; t < micro_batch * sequence; ++t)
    batch.positions.push_back(static_cast<int32_t>(t % sequence));
  return batch;
}

struct RunOptions {
  std::vector<int64_t> segments = {};  // lengths that add up to the sequence; empty: no carry
  bool recover = false;  // blocks keep only `kept` in forward, and recover the rest before backward
  uint64_t kept = 0;     // bit i: saved tensor i of each block
  bool backward = true;
  bool in_place = false;  // dx in the memory of dy
  bool written = false;   // gradients begin as anything, not as zeros, and the first of each are written
};

struct RunResult {
  double loss_sum = 0;
  int64_t valid_tokens = 0;
  std::vector<float> token_losses;
  std::map<std::string, std::vector<float>> gradients;  // by parameter name, in libtrainer's layout
};

using WeightFunction = std::function<void(const ParameterSpec&, std::span<float>)>;

class ModelRunner {
 public:
  // `group`: of a model that is cut over its ranks; `sequence`: its activations too.
  ModelRunner(const ModelConfig& config, std::unique_ptr<KernelSet> kernels, DType dtype,
              TensorGroup* group = nullptr, bool sequence = false)
      : model_(config, 0, group ? TensorPart{group->size(), group->rank(), sequence} : TensorPart{}),
        kernels_(std::move(kernels)),
        dtype_(dtype),
        group_(group) {
    for (int i = 0; i < model_.layer_count(); ++i) {
      weights_.emplace_back(model_.layer(i).block_size() * element());
      weights_.back().zero();
    }
    set_weights(
        [](const ParameterSpec& spec, std::span<float> values) { initialize_parameter(spec, 1, 0, values); });
  }

  const Model& model() const { return model_; }
  KernelSet& kernels() { return *kernels_; }
  DType dtype() const { return dtype_; }

  void set_weights(const WeightFunction& fill) {
    for (int i = 0; i < model_.layer_count(); ++i)
      for (const auto& spec : model_.layer(i).parameters()) {
        std::vector<float> whole(static_cast<size_t>(spec.logical_count()));
        fill(spec, whole);
        std::vector<float> values(static_cast<size_t>(spec.count()));
        for_each_held_run(spec, [&](int64_t from, int64_t to, int64_t count) {
          std::copy_n(whole.begin() + from, count, values.begin() + to);
        });
        kernels_->convert(block(i).at(spec.offset), ref(static_cast<const float*>(values.data())),
                          spec.count());
      }
  }
  // fp32 only.
  std::span<float> weight(const std::string& name) {
    for (int i = 0; i < model_.layer_count(); ++i)
      for (const auto& spec : model_.layer(i).parameters())
        if (spec.name == name)
          return {weights_[static_cast<size_t>(i)].f32() + spec.offset, static_cast<size_t>(spec.count())};
    throw std::logic_error("no parameter " + name);
  }
  std::vector<Ref> blocks() {
    std::vector<Ref> refs;
    for (int i = 0; i < model_.layer_count(); ++i) refs.push_back(block(i));
    return refs;
  }

  // Gradients are of the sum of the losses.
  RunResult run(const TestBatch& batch, const RunOptions& options = {}) {
    begin(batch, options);
    RunResult result;
    result.token_losses.resize(batch.tokens.size());
    for (size_t s = 0; s < segments_.size(); ++s) forward(segments_[s], batch, options, result);
    if (options.backward) {
      for (size_t s = segments_.size(); s-- > 0;) backward(segments_[s], options);
      collect_gradients(result);
    }
    check_guards();
    return result;
  }

  // [micro_batch * sequence, vocabulary].
  std::vector<float> logits(const TestBatch& batch) {
    RunOptions options;
    options.backward = false;
    options.recover = true;
    begin(batch, options);
    RunResult unused;
    unused.token_losses.resize(batch.tokens.size());
    forward(segments_[0], batch, options, unused);
    const int64_t rows = batch.micro_batch * batch.sequence;
    GuardedBuffer temporary(model_.head().logits_temporary_bytes(rows, dtype_));
    std::vector<float> logits(static_cast<size_t>(rows * model_.config().vocabulary_size));
    LayerCall call = make_call(segments_[0], model_.layer_count() - 1);
    call.temporary = temporary.bytes();
    model_.head().logits(call, segments_[0].activations.back().as(dtype_), rows, logits.data());
    temporary.check("temporary of logits");
    return logits;
  }

  // A layer's gradients as the last run left them, padding too.
  std::vector<float> gradient_block(int layer) const {
    const GuardedBuffer& block = gradients_[static_cast<size_t>(layer)];
    return {block.f32(), block.f32() + block.size() / sizeof(float)};
  }

  // The bytes of every saved tensor of the last run, block by block.
  std::vector<std::byte> saved_bytes() const {
    std::vector<std::byte> all;
    for (const auto& segment : segments_)
      for (const auto& layer : segment.saved)
        for (const auto& buffer : layer) all.insert(all.end(), buffer.bytes().begin(), buffer.bytes().end());
    return all;
  }

 private:
  struct Segment {
    int64_t offset = 0;
    std::vector<int32_t> tokens, labels, positions;
    BatchView view;
    std::vector<GuardedBuffer> activations;         // output of layer 0 ... L
    std::vector<std::vector<GuardedBuffer>> saved;  // per layer, per catalogue entry
  };

  int64_t element() const { return static_cast<int64_t>(size_of(dtype_)); }
  Ref block(int layer) const { return weights_[static_cast<size_t>(layer)].as(dtype_); }

  void begin(const TestBatch& batch, const RunOptions& options) {
    const std::vector<int64_t> lengths =
        options.segments.empty() ? std::vector<int64_t>{batch.sequence} : options.segments;
    int64_t temporary_bytes = 0, workspace_bytes = 0;
    segments_.clear();
    int64_t offset = 0;
    for (const int64_t length : lengths) {
      segments_.push_back(cut(batch, offset, length));
      offset += length;
      WorkspaceShape shape = model_.workspace_shape(batch.micro_batch, length, dtype_);
      shape.sequence = batch.sequence;
      workspace_bytes = std::max(workspace_bytes, static_cast<int64_t>(kernels_->workspace_bytes(shape)));
      for (int i = 0; i < model_.layer_count(); ++i)
        temporary_bytes = std::max(
            temporary_bytes, model_.layer(i).catalogue(batch.micro_batch, length, dtype_).temporary_bytes);
    }
    temporary_ = GuardedBuffer(temporary_bytes);
    workspace_ = GuardedBuffer(workspace_bytes);
    kernels_->grant_workspace(workspace_.bytes());
    carries_.clear();
    carry_memory_.clear();
    if (!options.segments.empty()) make_carries(batch);
    gradients_.clear();
    for (int i = 0; i < model_.layer_count(); ++i) {
      gradients_.emplace_back(model_.layer(i).block_size() * 4);
      if (!options.written) gradients_.back().zero();
    }
    fresh_.assign(gradients_.size(), options.written);
  }

  Segment cut(const TestBatch& batch, int64_t offset, int64_t length) {
    Segment segment;
    segment.offset = offset;
    for (int64_t b = 0; b < batch.micro_batch; ++b)
      for (int64_t i = 0; i < length; ++i) {
        const auto t = static_cast<size_t>(b * batch.sequence + offset + i);
        segment.tokens.push_back(batch.tokens[t]);
        segment.labels.push_back(batch.labels[t]);
        segment.positions.push_back(batch.positions[t]);
      }
    segment.view = {.micro_batch = batch.micro_batch,
                    .sequence = length,
                    .tokens = segment.tokens.data(),
                    .labels = segment.labels.data(),
                    .positions = segment.positions.data(),
                    .document_starts = batch.document_starts};
    for (int i = 0; i < model_.layer_count(); ++i) {
      const LayerCatalogue catalogue = model_.layer(i).catalogue(batch.micro_batch, length, dtype_);
      if (catalogue.output_bytes) segment.activations.emplace_back(catalogue.output_bytes);
      segment.saved.emplace_back();
      for (const auto& tensor : catalogue.saved) segment.saved.back().emplace_back(tensor.bytes);
    }
    return segment;
  }

  void make_carries(const TestBatch& batch) {
    const int64_t count = batch.micro_batch * batch.sequence * model_.config().kv_width();
    for (int64_t i = 0; i < model_.config().num_layers; ++i) {
      const size_t first = carry_memory_.size();
      for (const int64_t bytes : {count * element(), count * element(), count * 4, count * 4})
        carry_memory_.emplace_back(bytes);
      carry_memory_[first + 2].zero();
      carry_memory_[first + 3].zero();
      carries_.push_back({.k = carry_memory_[first].as(dtype_),
                          .v = carry_memory_[first + 1].as(dtype_),
                          .dk = carry_memory_[first + 2].f32(),
                          .dv = carry_memory_[first + 3].f32(),
                          .whole_sequence = batch.sequence});
    }
  }

  // Says so if the layer's pass is the first to add to its gradients, or to the embedding's.
  void begin_gradients(LayerCall& call, int layer, bool forward) {
    const bool head = layer + 1 == model_.layer_count(), tied = model_.config().tie_word_embeddings;
    if (!forward || head) call.first_gradients = std::exchange(fresh_[static_cast<size_t>(layer)], false);
    if (forward && head && tied) call.first_shared_gradients = std::exchange(fresh_[0], false);
  }

  LayerCall make_call(const Segment& segment, int layer) {
    temporary_.spoil();
    LayerCall call{.kernels = *kernels_,
                   .batch = segment.view,
                   .weights = block(layer),
                   .shared_weights = block(0),
                   .gradients = gradients_[static_cast<size_t>(layer)].f32(),
                   .shared_gradients = gradients_[0].f32(),
                   .saved = {},
                   .temporary = temporary_.bytes(),
                   .tensor = group_};
    const bool is_block = layer > 0 && layer + 1 < model_.layer_count();
    if (is_block && !carries_.empty()) {
      call.carry = &carries_[static_cast<size_t>(layer - 1)];
      call.carry->offset = segment.offset;
    }
    return call;
  }

  std::vector<Ref> saved_refs(Segment& segment, int layer, uint64_t mask) {
    std::vector<Ref> refs;
    const auto entries =
        model_.layer(layer).catalogue(segment.view.micro_batch, segment.view.sequence, dtype_).saved;
    for (size_t i = 0; i < entries.size(); ++i) {
      const bool fp32 = entries[i].name == "log_sum_exp" || entries[i].name.starts_with("norm_");
      const Ref tensor = segment.saved[static_cast<size_t>(layer)][i].as(
          fp32 && entries[i].name != "norm_gradient" ? DType::kF32 : dtype_);
      refs.push_back(mask >> i & 1 ? tensor : Ref{nullptr, tensor.dtype});
    }
    return refs;
  }

  ConstRef input_of(Segment& segment, int layer) {
    return layer == 0 ? ConstRef{} : ConstRef(segment.activations[static_cast<size_t>(layer - 1)].as(dtype_));
  }

  void forward(Segment& segment, const TestBatch& batch, const RunOptions& options, RunResult& result) {
    const int last = model_.layer_count() - 1;
    for (int i = 0; i <= last; ++i) {
      LayerCall call = make_call(segment, i);
      const std::vector<Ref> saved =
          saved_refs(segment, i, options.recover && i < last ? options.kept : ~uint64_t{0});
      if (options.backward || i < last) call.saved = saved;
      if (options.recover && options.kept == 0 && i < last) call.saved = {};
      std::vector<float> token_losses(segment.tokens.size());
      if (i == last) call.token_losses = token_losses.data();
      if (options.backward) begin_gradients(call, i, true);
      const Ref y = i < last ? segment.activations[static_cast<size_t>(i)].as(dtype_) : Ref{};
      const ClassifierResult loss = model_.layer(i).forward(call, input_of(segment, i), y);
      temporary_.check("temporary of forward");
      if (i < last) continue;
      result.loss_sum += loss.loss_sum;
      result.valid_tokens += loss.valid_tokens;
      for (int64_t b = 0; b < batch.micro_batch; ++b)
        for (int64_t t = 0; t < segment.view.sequence; ++t)
          result.token_losses[static_cast<size_t>(b * batch.sequence + segment.offset + t)] =
              token_losses[static_cast<size_t>(b * segment.view.sequence + t)];
    }
  }

  void backward(Segment& segment, const RunOptions& options) {
    const int64_t bytes = segment.view.count() * model_.config().hidden_size * element();
    GuardedBuffer dy(bytes), dx(bytes);
    for (int i = model_.layer_count() - 1; i >= 0; --i) {
      const bool is_block = i > 0 && i + 1 < model_.layer_count();
      const std::vector<Ref> saved = saved_refs(segment, i, ~uint64_t{0});
      if (options.recover && is_block) {
        LayerCall call = make_call(segment, i);
        call.saved = saved;
        call.kept = options.kept;
        model_.layer(i).recover(call, input_of(segment, i));
        temporary_.check("temporary of recover");
      }
      LayerCall call = make_call(segment, i);
      call.saved = saved;
      begin_gradients(call, i, false);
      const bool is_head = i + 1 == model_.layer_count();
      const Ref out = i == 0 ? Ref{} : options.in_place ? dy.as(dtype_) : dx.as(dtype_);
      model_.layer(i).backward(call, input_of(segment, i), is_head ? ConstRef{} : ConstRef(dy.as(dtype_)),
                               out);
      temporary_.check("temporary of backward");
      dx.check("dx");
      dy.check("dy");
      if (!options.in_place) std::swap(dx, dy);
    }
  }

  void collect_gradients(RunResult& result) const {
    for (int i = 0; i < model_.layer_count(); ++i)
      for (const auto& spec : model_.layer(i).parameters()) {
        const float* begin = gradients_[static_cast<size_t>(i)].f32() + spec.offset;
        result.gradients[spec.name] = {begin, begin + spec.count()};
      }
  }

  void check_guards() const {
    workspace_.check("workspace");
    for (const auto& buffer : carry_memory_) buffer.check("carry");
    for (const auto& buffer : gradients_) buffer.check("gradients");
    for (const auto& segment : segments_) {
      for (const auto& buffer : segment.activations) buffer.check("activations");
      for (const auto& layer : segment.saved)
        for (const auto& buffer : layer) buffer.check("saved tensor");
    }
  }

  Model model_;
  std::unique_ptr<KernelSet> kernels_;
  DType dtype_;
  TensorGroup* group_;
  std::vector<GuardedBuffer> weights_, gradients_, carry_memory_;
  std::vector<uint8_t> fresh_;  // by layer: nothing has been added to its gradients yet
  std::vector<Carry> carries_;
  std::vector<Segment> segments_;
  GuardedBuffer temporary_, workspace_;
};

// Gradients relative to the largest element of each tensor.
inline void expect_close(const RunResult& actual, const RunResult& expected, double tolerance) {
  EXPECT_EQ(actual.valid_tokens, expected.valid_tokens);
  EXPECT_NEAR(actual.loss_sum, expected.loss_sum, tolerance * std::abs(expected.loss_sum));
  ASSERT_EQ(actual.gradients.size(), expected.gradients.size());
  for (const auto& [name, gradient] : expected.gradients) {
    double worst = 0, scale = 1e-30;
    ASSERT_EQ(actual.gradients.at(name).size(), gradient.size()) << name;
    for (size_t i = 0; i < gradient.size(); ++i) {
      const double delta = std::abs(double{actual.gradients.at(name)[i]} - double{gradient[i]});
      if (!(delta <= worst)) worst = delta;  // a NaN sticks
      scale = std::max(scale, std::abs(double{gradient[i]}));
    }
    EXPECT_LT(worst / scale, tolerance) << name;
  }
}

}  // namespace trainer
