#include "cuda/kernel_set.h"

#include <algorithm>

#include "base/error.h"
#include "cuda/attention.h"
#include "cuda/gemm.h"
#include "cuda/kernels.h"
#include "ops/wrong_label.h"

namespace trainer::TRAINER_DEVICE_NAMESPACE {
namespace {

constexpr size_t kScratchAlignment = 64;
size_t aligned(size_t bytes) {
  return (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
}

// Of a chunk of the classifier: its fp32 logits take at most 128 MiB, but its products have rows enough to be
// fast.
constexpr int64_t kMostLogitBytes = int64_t{128} << 20;
constexpr int64_t kLeastChunkTokens = 128, kMostChunkTokens = 4096;

class TileProducts final : public Products {
 public:
  std::string name() const override { return "tiles"; }
  size_t workspace_bytes(const WorkspaceShape&) const override { return 0; }
  void nt(Ref y, ConstRef x, ConstRef w, ConstRef bias, int64_t m, int64_t n, int64_t k, std::span<std::byte>,
          Stream stream) override {
    gemm_nt(y, x, w, bias, m, n, k, stream);
  }
  void nn(Ref dx, ConstRef dy, ConstRef w, int64_t m, int64_t n, int64_t k, bool accumulate,
          std::span<std::byte>, Stream stream) override {
    gemm_nn(dx, dy, w, m, n, k, accumulate, stream);
  }
  void tn(float* dw, ConstRef dy, ConstRef x, int64_t m, int64_t n, int64_t k, bool accumulate,
          std::span<std::byte>, Stream stream) override {
    gemm_tn(dw, dy, x, m, n, k, accumulate, stream);
  }
};

class BlockAttention final : public Attention {
 public:
  std::string name() const override { return "blocks"; }
  size_t workspace_bytes(const WorkspaceShape& shape) const override {
    return static_cast<size_t>(shape.tokens * std::max<int64_t>(1, shape.heads)) * sizeof(float);
  }
  void forward(Ref out, float* log_sum_exp, ConstRef q, ConstRef k, ConstRef v, const AttentionShape& s,
               const int32_t* document_first, std::span<std::byte>, Stream stream) override {
    attention_forward(out, log_sum_exp, q, k, v, s, document_first, stream);
  }
  void backward(Ref dq, float* dk, float* dv, ConstRef dout, ConstRef out, const float* log_sum_exp,
                ConstRef q, ConstRef k, ConstRef v, const AttentionShape& s, const int32_t* document_first,
                std::span<std::byte> workspace, Stream stream) override {
    attention_backward(dq, dk, dv, dout, out, log_sum_exp, q, k, v, s, document_first, workspace, stream);
  }
};

}  // namespace

std::unique_ptr<Products> make_tile_products() { return std::make_unique<TileProducts>(); }
std::unique_ptr<Attention> make_block_attention() { return std::make_unique<BlockAttention>(); }

// Spans of the workspace, one after the other. A broken invariant, naming the operation, if too little was
// granted.
class DeviceKernels::Scratch {
 public:
  Scratch(std::span<std::byte> rest, const char* operation) : rest_(rest), operation_(operation) {}

  std::span<std::byte> bytes(size_t count) {
    require(count <= rest_.size(), "{} needs {} bytes of workspace more than the {} that it has left",
            operation_, count, rest_.size());
    const std::span<std::byte> taken = rest_.first(count);
    rest_ = rest_.subspan(std::min(aligned(count), rest_.size()));
    return taken;
  }
  template <class T>
  T* take(int64_t count) {
    return reinterpret_cast<T*>(bytes(static_cast<size_t>(count) * sizeof(T)).data());
  }
  std::span<std::byte> rest() const { return rest_; }

 private:
  std::span<std::byte> rest_;
  const char* operation_;
};

DeviceKernels::DeviceKernels(std::unique_ptr<Products> products, std::unique_ptr<Attention> attention,
                             Stream stream, int64_t chunk_tokens)
    : products_(std::move(products)),
      attention_(std::move(attention)),
      stream_(stream),
      chunk_tokens_(chunk_tokens) {}

int64_t DeviceKernels::chunk_tokens(int64_t largest_part) const {
  if (chunk_tokens_ > 0) return chunk_tokens_;
  return std::clamp<int64_t>(kMostLogitBytes / (largest_part * 4), kLeastChunkTokens, kMostChunkTokens);
}

std::string DeviceKernels::name() const {
#if defined(TRAINER_CUDA)
  return "cuda, products by " + products_->name() + ", attention by " + attention_->name();
#else
  return "device kernels on the host, products by " + products_->name();
#endif
}

size_t DeviceKernels::workspace_bytes(const WorkspaceShape& shape) const {
  const int64_t positions = std::max(shape.positions, shape.tokens),
                heads = std::max<int64_t>(1, shape.heads);
  const size_t products = products_->workspace_bytes(shape);
  const size_t sums = std::max({norm_backward_workspace(shape.tokens, shape.hidden),
                                norm_backward_workspace(shape.tokens * heads, shape.head_dim),
                                bias_backward_workspace(shape.tokens, shape.widest_row)});
  const size_t documents = aligned(static_cast<size_t>(positions) * sizeof(int32_t));
  const size_t attention = 2 * documents + attention_->workspace_bytes(shape);
  size_t classifier = 0;
  if (shape.vocabulary > 0) {
    const int64_t tokens = std::min(shape.tokens, chunk_tokens(shape.vocabulary));
    const auto logits = static_cast<size_t>(tokens * shape.vocabulary);
    classifier = aligned(sizeof(ClassifierSums)) + aligned(static_cast<size_t>(tokens) * sizeof(double)) +
                 aligned(logits * sizeof(float)) +
                 (shape.dtype == DType::kF32 ? 0 : aligned(logits * size_of(shape.dtype))) + products;
    if (shape.tensor_ranks > 1)
      classifier += aligned(static_cast<size_t>(tokens * shape.tensor_ranks) * sizeof(SoftmaxPart));
  }
  return std::max({products, sums, attention, classifier});
}

void DeviceKernels::grant_workspace(std::span<std::byte> workspace) {
  require(reinterpret_cast<uintptr_t>(workspace.data()) % kScratchAlignment == 0,
          "a workspace that is not aligned");
  workspace_ = workspace;
}

void DeviceKernels::linear_forward(Ref y, ConstRef x, ConstRef w, ConstRef bias, int64_t m, int64_t n,
                                   int64_t k) {
  products_->nt(y, x, w, bias, m, n, k, workspace_, stream_);
}

void DeviceKernels::linear_backward_input(Ref dx, ConstRef dy, ConstRef w, int64_t m, int64_t n, int64_t k,
                                          bool accumulate) {
  products_->nn(dx, dy, w, m, n, k, accumulate, workspace_, stream_);
}

void DeviceKernels::linear_backward_weight(float* dw, ConstRef dy, ConstRef x, int64_t m, int64_t n,
                                           int64_t k, bool accumulate) {
  products_->tn(dw, dy, x, m, n, k, accumulate, workspace_, stream_);
}

void DeviceKernels::bias_backward(float* db, ConstRef dy, int64_t m, int64_t n) {
  Scratch scratch(workspace_, "bias_backward");
  TRAINER_DEVICE_NAMESPACE::bias_backward(db, dy, m, n, scratch.bytes(bias_backward_workspace(m, n)),
                                          stream_);
}

void DeviceKernels::embedding_forward(Ref y, const int32_t* tokens, ConstRef table, const int32_t* positions,
                                      ConstRef position_table, int64_t count, int64_t hidden) {
  require(!position_table || position_table.dtype == table.dtype,
          "embedding_forward: tables of two element types");
  TRAINER_DEVICE_NAMESPACE::embedding_forward(y, tokens, table, positions, position_table, count, hidden,
                                              stream_);
}

void DeviceKernels::embedding_backward(float* dtable, const int32_t* tokens, float* dposition,
                                       const int32_t* positions, ConstRef dy, int64_t count, int64_t hidden) {
  TRAINER_DEVICE_NAMESPACE::embedding_backward(dtable, tokens, dposition, positions, dy, count, hidden,
                                               stream_);
}

void DeviceKernels::norm_forward(const NormForward& a) {
  const DType type = a.x.dtype;
  require(a.y.dtype == type && a.weight.dtype == type && (!a.bias || a.bias.dtype == type) &&
              (!a.delta || (a.delta.dtype == type && a.sum && a.sum.dtype == type)),
          "norm_forward: its tensors have several element types");
  TRAINER_DEVICE_NAMESPACE::norm_forward(a, stream_);
}

void DeviceKernels::norm_backward(const NormBackward& a) {
  const DType type = a.x.dtype;
  require(a.weight.dtype == type && a.dx.dtype == type && (!a.dresidual || a.dresidual.dtype == type) &&
              (a.dy.dtype == type || a.dy.dtype == DType::kF32),
          "norm_backward: its tensors have element types that do not go together");
  Scratch scratch(workspace_, "norm_backward");
  std::span<std::byte> sums;
  if (a.dweight || a.dbias) {
    sums = scratch.bytes(norm_backward_workspace(a.x_shape.outer * a.x_shape.inner, a.x_shape.columns));
  }
  TRAINER_DEVICE_NAMESPACE::norm_backward(a, sums, stream_);
}

void DeviceKernels::rope(Ref out, ConstRef in, const RopeArguments& a) {
  TRAINER_DEVICE_NAMESPACE::rope(out, in, a, stream_);
}

void DeviceKernels::swiglu_forward(Ref y, ConstRef gate_up, int64_t tokens, int64_t ffn) {
  TRAINER_DEVICE_NAMESPACE::swiglu_forward(y, gate_up, tokens, ffn, stream_);
}

void DeviceKernels::swiglu_backward(Ref dgate_up, ConstRef dy, ConstRef gate_up, int64_t tokens,
                                    int64_t ffn) {
  TRAINER_DEVICE_NAMESPACE::swiglu_backward(dgate_up, dy, gate_up, tokens, ffn, stream_);
}

void DeviceKernels::gelu_forward(Ref y, ConstRef x, int64_t count, bool exact) {
  TRAINER_DEVICE_NAMESPACE::gelu_forward(y, x, count, exact, stream_);
}

void DeviceKernels::gelu_backward(Ref dx, ConstRef dy, ConstRef x, int64_t count, bool exact) {
  TRAINER_DEVICE_NAMESPACE::gelu_backward(dx, dy, x, count, exact, stream_);
}

// Null where every batch row is one document.
const int32_t* DeviceKernels::first_of_documents(Scratch& scratch, const AttentionShape& s) {
  if (s.document_starts.empty()) return nullptr;
  const int64_t positions = s.batch * s.key_rows, documents = static_cast<int64_t>(s.document_starts.size());
  auto* const first = scratch.take<int32_t>(positions);
  auto* const starts = scratch.take<int32_t>(documents);
  copy(starts, s.document_starts.data(), s.document_starts.size_bytes(), stream_);
  first_of_document(first, positions, starts, documents, stream_);
  return first;
}

void DeviceKernels::attention_forward(Ref out, float* log_sum_exp, ConstRef q, ConstRef k, ConstRef v,
                                      const AttentionShape& s) {
  Scratch scratch(workspace_, "attention_forward");
  const int32_t* const first = first_of_documents(scratch, s);
  attention_->forward(out, log_sum_exp, q, k, v, s, first, scratch.rest(), stream_);
}

void DeviceKernels::attention_backward(Ref dq, float* dk, float* dv, ConstRef dout, ConstRef out,
                                       const float* log_sum_exp, ConstRef q, ConstRef k, ConstRef v,
                                       const AttentionShape& s) {
  Scratch scratch(workspace_, "attention_backward");
  const int32_t* const first = first_of_documents(scratch, s);
  attention_->backward(dq, dk, dv, dout, out, log_sum_exp, q, k, v, s, first, scratch.rest(), stream_);
}

ClassifierResult DeviceKernels::classifier(const Classifier& a) {
  if (a.tokens == 0) {
    if (a.dweight && !a.accumulate)
      fill_zero(a.dweight, static_cast<size_t>(a.vocabulary * a.hidden) * sizeof(float));
    return {};
  }
  const DType type = a.weight.dtype;
  require(a.x.dtype == type && (!a.dx || a.dx.dtype == type),
          "classifier: its tensors have several element types");
  const int64_t most_tokens = chunk_tokens(a.largest_part()),
                chunks = (a.tokens + most_tokens - 1) / most_tokens;
  const int64_t most = (a.tokens + chunks - 1) / chunks;
  Scratch scratch(workspace_, "classifier");
  auto* const sums = scratch.take<ClassifierSums>(1);
  auto* const losses = scratch.take<double>(most);
  auto* const logits = scratch.take<float>(most * a.vocabulary);
  // Products have operands of one type: bf16 slopes cannot stand where the logits are still being read.
  Ref slopes;
  if (a.dx)
    slopes = type == DType::kF32 ? ref(logits) : Ref{scratch.take<uint16_t>(most * a.vocabulary), type};
  const int ranks = a.part.group ? a.part.group->size() : 1;
  auto* const parts = a.part.group ? scratch.take<SoftmaxPart>(ranks * most) : nullptr;
  const ClassifierSums none;
  copy(sums, &none, sizeof none, stream_);
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t begin = a.tokens * chunk / chunks, count = a.tokens * (chunk + 1) / chunks - begin;
    const ConstRef x = a.x.at(begin * a.hidden);
    products_->nt(ref(logits), x, a.weight, {}, count, a.vocabulary, a.hidden, scratch.rest(), stream_);
    const int32_t* const labels = a.labels + begin;
    if (a.part.group) {
      const OwnWords own{a.part.first, a.vocabulary, a.part.words};
      softmax_parts(parts + a.part.group->rank() * count, logits, labels, count, own, stream_);
      a.part.group->all_gather(parts, static_cast<size_t>(count) * sizeof(SoftmaxPart));
      softmax_slopes_of_parts(losses, slopes, logits, labels, count, own, parts, ranks, stream_);
    } else {
      softmax_slopes(losses, slopes, logits, labels, count, a.vocabulary, stream_);
    }
    add_losses(sums, a.token_losses, losses, labels, begin, count, a.words(), stream_);
    if (!a.dx) continue;
    products_->nn(a.dx.at(begin * a.hidden), slopes, a.weight, count, a.vocabulary, a.hidden, false,
                  scratch.rest(), stream_);
    if (a.dweight)
      products_->tn(a.dweight, slopes, x, count, a.vocabulary, a.hidden, a.accumulate || chunk > 0,
                    scratch.rest(), stream_);
  }
  ClassifierSums all;
  copy(&all, sums, sizeof all, stream_);
  wait(stream_);
  if (all.wrong_token >= 0) {
    int32_t label = 0;
    copy(&label, a.labels + all.wrong_token, sizeof label, stream_);
    wait(stream_);
    refuse_label(label, all.wrong_token, a.words());
  }
  return {all.loss_sum, all.valid_tokens};
}

void DeviceKernels::adamw(const AdamW& a) { TRAINER_DEVICE_NAMESPACE::adamw(a, stream_); }

void DeviceKernels::block_squares(double* squares, const float* x, int64_t count) {
  TRAINER_DEVICE_NAMESPACE::block_squares(squares, x, count, stream_);
}

void DeviceKernels::fill_zero(void* data, size_t bytes) { fill(data, 0, bytes, stream_); }

void DeviceKernels::convert(Ref to, ConstRef from, int64_t count) {
  TRAINER_DEVICE_NAMESPACE::convert_rows(to, 0, from, 0, 1, count, stream_);
}

void DeviceKernels::convert_rows(Ref to, int64_t to_stride, ConstRef from, int64_t from_stride, int64_t rows,
                                 int64_t columns) {
  TRAINER_DEVICE_NAMESPACE::convert_rows(to, to_stride, from, from_stride, rows, columns, stream_);
}

void DeviceKernels::add(Ref y, ConstRef x, int64_t count) {
  require(y.dtype == x.dtype, "add: its tensors have two element types");
  TRAINER_DEVICE_NAMESPACE::add(y, x, count, stream_);
}

}  // namespace trainer::TRAINER_DEVICE_NAMESPACE
