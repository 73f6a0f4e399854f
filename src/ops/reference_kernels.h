// The oracle of the operations' test suite: plain loops, every sum in double precision, results rounded once.
#pragma once

#include "ops/kernel_set.h"

namespace trainer {

// Shapes and aliasing as the interface states; temporaries are allocated as needed, the workspace is not
// used.
class ReferenceKernels final : public KernelSet {
 public:
  std::string name() const override { return "reference"; }
  size_t workspace_bytes(const WorkspaceShape&) const override { return 0; }
  void grant_workspace(std::span<std::byte>) override {}

  void linear_forward(Ref y, ConstRef x, ConstRef w, ConstRef bias, int64_t m, int64_t n, int64_t k) override;
  void linear_backward_input(Ref dx, ConstRef dy, ConstRef w, int64_t m, int64_t n, int64_t k,
                             bool accumulate) override;
  void linear_backward_weight(float* dw, ConstRef dy, ConstRef x, int64_t m, int64_t n, int64_t k,
                              bool accumulate) override;
  void bias_backward(float* db, ConstRef dy, int64_t m, int64_t n) override;
  void embedding_forward(Ref y, const int32_t* tokens, ConstRef table, const int32_t* positions,
                         ConstRef position_table, int64_t count, int64_t hidden) override;
  void embedding_backward(float* dtable, const int32_t* tokens, float* dposition, const int32_t* positions,
                          ConstRef dy, int64_t count, int64_t hidden) override;
  void norm_forward(const NormForward& a) override;
  void norm_backward(const NormBackward& a) override;
  void rope(Ref out, ConstRef in, const RopeArguments& a) override;
  void swiglu_forward(Ref y, ConstRef gate_up, int64_t tokens, int64_t ffn) override;
  void swiglu_backward(Ref dgate_up, ConstRef dy, ConstRef gate_up, int64_t tokens, int64_t ffn) override;
  void gelu_forward(Ref y, ConstRef x, int64_t count, bool exact) override;
  void gelu_backward(Ref dx, ConstRef dy, ConstRef x, int64_t count, bool exact) override;
  void attention_forward(Ref out, float* log_sum_exp, ConstRef q, ConstRef k, ConstRef v,
                         const AttentionShape& s) override;
  void attention_backward(Ref dq, float* dk, float* dv, ConstRef dout, ConstRef out, const float* log_sum_exp,
                          ConstRef q, ConstRef k, ConstRef v, const AttentionShape& s) override;
  ClassifierResult classifier(const Classifier& a) override;
  void adamw(const AdamW& a) override;
  void block_squares(double* squares, const float* x, int64_t count) override;
  void fill_zero(void* data, size_t bytes) override;
  void convert(Ref to, ConstRef from, int64_t count) override;
  void convert_rows(Ref to, int64_t to_stride, ConstRef from, int64_t from_stride, int64_t rows,
                    int64_t columns) override;
  void add(Ref y, ConstRef x, int64_t count) override;
};

}  // namespace trainer
