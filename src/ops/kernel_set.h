// The one interface of operations. Every backend implements all of it; one test suite runs over all backends
// against a double-precision reference.
//
// Contract: activations, weights and their gradients towards activations have one dtype (fp32 or bf16) per
// call unless said otherwise; statistics and parameter gradients are fp32. Every sum is accumulated in fp32
// or better. Results do not depend on the number of threads. Calls are synchronous on a host backend. Nothing
// is allocated: temporaries come from the workspace granted beforehand.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "ops/tensor.h"
#include "ops/tensor_group.h"

namespace trainer {

// Bounds over every call of a model, from which the workspace is sized.
struct WorkspaceShape {
  DType dtype = DType::kF32;
  int64_t tokens = 0;      // rows of one micro-batch
  int64_t widest_row = 0;  // largest N or K of any linear layer other than the classifier
  int64_t hidden = 0;
  int64_t vocabulary = 0;  // 0: no classifier
  int64_t sequence = 0;    // longest key range of attention
  int64_t heads = 0, head_dim = 0;
  int64_t positions = 0;     // batch x key_rows of attention with documents, where that is more than `tokens`
  int64_t tensor_ranks = 1;  // that share the classifier; `vocabulary` is then the largest part of one
};

// [outer, inner, columns]; rows of `columns` contiguous elements, `inner` of them contiguous, outer ones
// `outer_stride` elements apart. A plain matrix has inner = 1, outer_stride = columns.
struct RowShape {
  int64_t outer = 0, inner = 1, columns = 0, outer_stride = 0;
};

enum class NormKind : uint8_t { kRms, kLayer };

struct NormForward {
  NormKind kind;
  RowShape x_shape, y_shape;  // same outer, inner, columns
  ConstRef x, delta;          // delta may be null; else the norm is of x + delta (same strides as x)
  Ref sum;                    // where x + delta goes when delta is given
  ConstRef weight, bias;      // [columns]; bias may be null
  float epsilon;
  Ref y;
  float* mean;        // [outer * inner], kLayer only
  float* reciprocal;  // [outer * inner]: 1 / root mean square, or 1 / standard deviation
};

struct NormBackward {
  NormKind kind;
  RowShape x_shape, dy_shape, dx_shape;
  ConstRef x, weight, dy;  // dy may be fp32 or the activations' dtype
  const float* mean;       // kLayer only
  const float* reciprocal;
  ConstRef dresidual;      // may be null; else added to dx (strides of dx)
  Ref dx;                  // may be dy or dresidual
  float *dweight, *dbias;  // += ; null: not wanted
};

// Query segment against a key/value range: key j of row b is visible to query i when j <= query_offset + i
// and both lie in the same document. Whole sequences have query_offset = 0 and query_length = key_length.
struct AttentionShape {
  int64_t batch, query_length, key_length, query_offset;
  int64_t heads, kv_heads, head_dim;     // heads is a multiple of kv_heads
  int64_t q_stride, k_stride, v_stride;  // elements from one token to the next; heads contiguous
  int64_t key_rows;                      // tokens from one batch row of k/v to the next (>= key_length)
  float scale;                           // positive
  // Start of each document over positions [0, batch * key_rows), ascending, first 0; every batch row starts
  // one. Empty: each batch row is one document.
  std::span<const int32_t> document_starts;
};

struct RopeArguments {
  int64_t tokens, heads, head_dim;
  int64_t in_stride, out_stride;  // elements from one token to the next
  const int32_t* positions;       // [tokens]
  const float *cosine, *sine;     // [positions, head_dim / 2]; rotates halves (x[i], x[i + head_dim/2])
  bool inverse;                   // the backward rotation
};

// A classifier whose words are cut over ranks: the weight holds words [first, first + vocabulary) of `words`.
// Labels and results are those of the whole vocabulary and the same on every rank; dx is this rank's summand.
struct VocabularyPart {
  TensorGroup* group = nullptr;  // null: the weight holds all words
  int64_t first = 0, words = 0;
  int64_t most = 0;  // words of the largest part: it decides on chunks, alike on all ranks
};

struct Classifier {
  int64_t tokens, hidden, vocabulary;
  ConstRef x;             // [tokens, hidden]
  ConstRef weight;        // [vocabulary, hidden]
  const int32_t* labels;  // [tokens]; -100: ignored
  // Backward of the SUM of the losses, in the same pass over the chunks; all null for forward only.
  Ref dx;               // [tokens, hidden], written; may not alias x
  float* dweight;       // [vocabulary, hidden], += or written; null with dx given: frozen
  float* token_losses;  // [tokens], written, 0 where ignored; may be null
  VocabularyPart part = {};
  bool accumulate = true;  // dweight is added to

  int64_t words() const { return part.group ? part.words : vocabulary; }
  int64_t largest_part() const { return part.group ? part.most : vocabulary; }
};
struct ClassifierResult {
  double loss_sum = 0;  // over valid tokens, summed in token order in double
  int64_t valid_tokens = 0;
};

struct AdamW {
  int64_t count;
  float *master, *moment1, *moment2;  // [count] fp32
  Ref working;                        // [count], refreshed from master; null or master itself: none
  const float* gradient;              // [count], sum over the global batch
  float gradient_scale;               // 1 / valid tokens x clip factor
  float learning_rate, beta1, beta2, epsilon, weight_decay;
  int64_t step;  // 1 for the first update of training
};

class KernelSet {
 public:
  virtual ~KernelSet() = default;
  virtual std::string name() const = 0;

  // Bytes any call within `shape` may need beside its arguments.
  virtual size_t workspace_bytes(const WorkspaceShape& shape) const = 0;
  // Lent until the next grant; 64-byte aligned.
  virtual void grant_workspace(std::span<std::byte> workspace) = 0;

  // y[M,N] = x[M,K] w[N,K]^T + bias[N] (bias may be null).
  virtual void linear_forward(Ref y, ConstRef x, ConstRef w, ConstRef bias, int64_t m, int64_t n,
                              int64_t k) = 0;
  // dx[M,K] = dy[M,N] w[N,K], added to dx when `accumulate`.
  virtual void linear_backward_input(Ref dx, ConstRef dy, ConstRef w, int64_t m, int64_t n, int64_t k,
                                     bool accumulate) = 0;
  // dw[N,K] = dy[M,N]^T x[M,K], added to dw when `accumulate`. M > 0.
  virtual void linear_backward_weight(float* dw, ConstRef dy, ConstRef x, int64_t m, int64_t n, int64_t k,
                                      bool accumulate) = 0;
  // db[N] += column sums of dy[M,N].
  virtual void bias_backward(float* db, ConstRef dy, int64_t m, int64_t n) = 0;

  // y[t] = table[tokens[t]] (+ position_table[positions[t]] when given). Tables [*, hidden]. A negative token
  // is one that the table does not hold: its entry is 0, and it adds nothing to dtable.
  virtual void embedding_forward(Ref y, const int32_t* tokens, ConstRef table, const int32_t* positions,
                                 ConstRef position_table, int64_t count, int64_t hidden) = 0;
  // dtable[tokens[t]] += dy[t], in token order; the same for positions when dposition is given.
  virtual void embedding_backward(float* dtable, const int32_t* tokens, float* dposition,
                                  const int32_t* positions, ConstRef dy, int64_t count, int64_t hidden) = 0;

  virtual void norm_forward(const NormForward& a) = 0;
  virtual void norm_backward(const NormBackward& a) = 0;

  // out = rotated in; in and out may be the same, and may differ in dtype.
  virtual void rope(Ref out, ConstRef in, const RopeArguments& a) = 0;

  // y[t, f] = silu(gate_up[t, f]) * gate_up[t, F + f].
  virtual void swiglu_forward(Ref y, ConstRef gate_up, int64_t tokens, int64_t ffn) = 0;
  virtual void swiglu_backward(Ref dgate_up, ConstRef dy, ConstRef gate_up, int64_t tokens, int64_t ffn) = 0;
  // The tanh form of GELU (`exact`: the erf form).
  virtual void gelu_forward(Ref y, ConstRef x, int64_t count, bool exact) = 0;
  virtual void gelu_backward(Ref dx, ConstRef dy, ConstRef x, int64_t count, bool exact) = 0;

  // out [batch * query_length, heads * head_dim], contiguous; log_sum_exp [batch, heads, query_length].
  virtual void attention_forward(Ref out, float* log_sum_exp, ConstRef q, ConstRef k, ConstRef v,
                                 const AttentionShape& s) = 0;
  // dq is written with q's strides. dk, dv are fp32 accumulators [batch, key_rows, kv_heads * head_dim],
  // contiguous, and are added to: earlier segments add to the same ones. dout, out are contiguous.
  virtual void attention_backward(Ref dq, float* dk, float* dv, ConstRef dout, ConstRef out,
                                  const float* log_sum_exp, ConstRef q, ConstRef k, ConstRef v,
                                  const AttentionShape& s) = 0;

  // Never holds more than a chunk of tokens x vocabulary. With no valid token the result is {0, 0} and dx is
  // 0.
  virtual ClassifierResult classifier(const Classifier& a) = 0;

  virtual void adamw(const AdamW& a) = 0;
  // squares[i] = sum of squares of block i (kNormBlock elements, the last one shorter), in double, fixed
  // order.
  static constexpr int64_t kNormBlock = 1 << 16;
  virtual void block_squares(double* squares, const float* x, int64_t count) = 0;

  virtual void fill_zero(void* data, size_t bytes) = 0;
  // to = from, converting; round to nearest even.
  virtual void convert(Ref to, ConstRef from, int64_t count) = 0;
  // Rows of `columns` elements, with a stride on each side, converting.
  virtual void convert_rows(Ref to, int64_t to_stride, ConstRef from, int64_t from_stride, int64_t rows,
                            int64_t columns) = 0;
  // y += x (bf16: the sum is rounded once).
  virtual void add(Ref y, ConstRef x, int64_t count) = 0;
};

// Plain loops in double precision; the oracle.
std::unique_ptr<KernelSet> make_reference_kernels();
// The vectorised host backend. `threads`: of this rank's compute lane; 0: as many as the cores it may use.
std::unique_ptr<KernelSet> make_host_kernels(int threads);

}  // namespace trainer
