// Launchers of all kernels but products and attention. Arguments mean what they mean in KernelSet and point
// to memory of the device; tensors of one call have one element type unless said otherwise, which the caller
// has checked.
//
// A launcher starts its kernels in the stream and returns. Nothing is allocated: what a kernel needs beside
// its arguments is a workspace, aligned to 16 bytes, whose size a function beside the launcher tells.
#pragma once

#include <cstdint>
#include <span>

#include "cuda/backend.h"
#include "ops/kernel_set.h"
#include "ops/softmax_part.h"

namespace trainer::TRAINER_DEVICE_NAMESPACE {

// elementwise.cu
void convert_rows(Ref to, int64_t to_stride, ConstRef from, int64_t from_stride, int64_t rows,
                  int64_t columns, Stream stream);
// y and x may differ in type.
void add(Ref y, ConstRef x, int64_t count, Stream stream);
void swiglu_forward(Ref y, ConstRef gate_up, int64_t tokens, int64_t ffn, Stream stream);
void swiglu_backward(Ref dgate_up, ConstRef dy, ConstRef gate_up, int64_t tokens, int64_t ffn, Stream stream);
void gelu_forward(Ref y, ConstRef x, int64_t count, bool exact, Stream stream);
void gelu_backward(Ref dx, ConstRef dy, ConstRef x, int64_t count, bool exact, Stream stream);
void rope(Ref out, ConstRef in, const RopeArguments& a, Stream stream);

// embedding.cu
void embedding_forward(Ref y, const int32_t* tokens, ConstRef table, const int32_t* positions,
                       ConstRef position_table, int64_t count, int64_t hidden, Stream stream);
void embedding_backward(float* dtable, const int32_t* tokens, float* dposition, const int32_t* positions,
                        ConstRef dy, int64_t count, int64_t hidden, Stream stream);
// document_first[p], for each of `positions` positions: the last of `starts` (ascending, the first is 0) that
// is <= p.
void first_of_document(int32_t* document_first, int64_t positions, const int32_t* starts, int64_t documents,
                       Stream stream);

// norm.cu
void norm_forward(const NormForward& a, Stream stream);
size_t norm_backward_workspace(int64_t rows, int64_t columns);
void norm_backward(const NormBackward& a, std::span<std::byte> workspace, Stream stream);
size_t bias_backward_workspace(int64_t m, int64_t n);
void bias_backward(float* db, ConstRef dy, int64_t m, int64_t n, std::span<std::byte> workspace,
                   Stream stream);

// classifier.cu

// What the classifier tells the host at its end.
struct ClassifierSums {
  double loss_sum = 0;
  int64_t valid_tokens = 0;
  int64_t wrong_token = -1;  // the first whose label is neither a word nor -100
};
// Softmax of each row of logits [tokens, vocabulary]: losses[t] (0 where ignored), and where `slopes` is
// given the gradient of the loss, [tokens, vocabulary], which may be the logits themselves. Rows without a
// valid label get zeros.
void softmax_slopes(double* losses, Ref slopes, const float* logits, const int32_t* labels, int64_t tokens,
                    int64_t vocabulary, Stream stream);
// The same of a vocabulary that is cut over ranks, whose words [first, first + vocabulary) of `words` are
// these logits: first every rank's parts [tokens], zeros where a label is not valid; then, with those of all
// ranks [ranks, tokens], losses of the whole vocabulary and slopes of the own words.
struct OwnWords {
  int64_t first, vocabulary, words;
};
void softmax_parts(SoftmaxPart* parts, const float* logits, const int32_t* labels, int64_t tokens,
                   const OwnWords& own, Stream stream);
void softmax_slopes_of_parts(double* losses, Ref slopes, const float* logits, const int32_t* labels,
                             int64_t tokens, const OwnWords& own, const SoftmaxPart* parts, int ranks,
                             Stream stream);
// Adds the tokens of a chunk that begins at `first` to `sums`, one after the other; writes
// token_losses[first...] where given.
void add_losses(ClassifierSums* sums, float* token_losses, const double* losses, const int32_t* labels,
                int64_t first, int64_t tokens, int64_t words, Stream stream);

// optimizer.cu
void adamw(const AdamW& a, Stream stream);
void block_squares(double* squares, const float* x, int64_t count, Stream stream);

// Moments in 8 bits (Dettmers et al., arXiv 2110.02861): blocks of kCodeBlock elements share a scale, the
// largest magnitude among them; an element is the nearest of 256 numbers in [-1, 1] (`kSigned`) or [0, 1],
// which lie closer together towards 0, times the scale. With kUnsigned a number above 0 does not become 0.
inline constexpr int64_t kCodeBlock = 256;
enum class CodeKind : uint8_t { kSigned, kUnsigned };
// codes [count], scales [count / kCodeBlock rounded up].
void quantise(uint8_t* codes, float* scales, const float* x, int64_t count, CodeKind kind, Stream stream);
void dequantise(float* x, const uint8_t* codes, const float* scales, int64_t count, CodeKind kind,
                Stream stream);
// The number that `code` stands for, before its scale.
float code_value(uint8_t code, CodeKind kind);

struct AdamW8Bit {
  AdamW plain;               // moment1 and moment2 are not looked at
  uint8_t *codes1, *codes2;  // [count]: moment1 is kSigned, moment2 kUnsigned
  float *scales1, *scales2;  // one a block
};
// AdamW on dequantised moments, which are then quantised again.
void adamw_8bit(const AdamW8Bit& a, Stream stream);

}  // namespace trainer::TRAINER_DEVICE_NAMESPACE
