// The vectorised host backend. The class is declared here once; its operations live in one source per kind:
// norm, rope, activation, embedding, optimizer, elementwise, gemm, attention, classifier.
//
// Work is split over `threads()` OpenMP threads along dimensions that no sum runs over, or into blocks whose
// number depends on the shape alone; whichever thread is free takes the next part. So every bit of a result
// is the same for any number of threads.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "cpu/isa.h"
#include "cpu/products.h"
#include "cpu/vector_table.h"
#include "ops/kernel_set.h"

namespace trainer {

class HostKernels final : public KernelSet {
 public:
  // `threads` 0: as many as the cores this process may use. `isa` must be one of available_isas().
  HostKernels(int threads, Isa isa);

  int threads() const { return threads_; }
  Isa isa() const { return isa_; }

  std::string name() const override;
  size_t workspace_bytes(const WorkspaceShape& shape) const override;
  void grant_workspace(std::span<std::byte> workspace) override;

  // gemm.cc
  void linear_forward(Ref y, ConstRef x, ConstRef w, ConstRef bias, int64_t m, int64_t n, int64_t k) override;
  void linear_backward_input(Ref dx, ConstRef dy, ConstRef w, int64_t m, int64_t n, int64_t k,
                             bool accumulate) override;
  void linear_backward_weight(float* dw, ConstRef dy, ConstRef x, int64_t m, int64_t n, int64_t k,
                              bool accumulate) override;
  void bias_backward(float* db, ConstRef dy, int64_t m, int64_t n) override;

  // embedding.cc
  void embedding_forward(Ref y, const int32_t* tokens, ConstRef table, const int32_t* positions,
                         ConstRef position_table, int64_t count, int64_t hidden) override;
  void embedding_backward(float* dtable, const int32_t* tokens, float* dposition, const int32_t* positions,
                          ConstRef dy, int64_t count, int64_t hidden) override;

  // norm.cc
  void norm_forward(const NormForward& a) override;
  void norm_backward(const NormBackward& a) override;

  // rope.cc
  void rope(Ref out, ConstRef in, const RopeArguments& a) override;

  // activation.cc
  void swiglu_forward(Ref y, ConstRef gate_up, int64_t tokens, int64_t ffn) override;
  void swiglu_backward(Ref dgate_up, ConstRef dy, ConstRef gate_up, int64_t tokens, int64_t ffn) override;
  void gelu_forward(Ref y, ConstRef x, int64_t count, bool exact) override;
  void gelu_backward(Ref dx, ConstRef dy, ConstRef x, int64_t count, bool exact) override;

  // attention.cc
  void attention_forward(Ref out, float* log_sum_exp, ConstRef q, ConstRef k, ConstRef v,
                         const AttentionShape& s) override;
  void attention_backward(Ref dq, float* dk, float* dv, ConstRef dout, ConstRef out, const float* log_sum_exp,
                          ConstRef q, ConstRef k, ConstRef v, const AttentionShape& s) override;

  // classifier.cc
  ClassifierResult classifier(const Classifier& a) override;

  // optimizer.cc
  void adamw(const AdamW& a) override;
  void block_squares(double* squares, const float* x, int64_t count) override;

  // elementwise.cc
  void fill_zero(void* data, size_t bytes) override;
  void convert(Ref to, ConstRef from, int64_t count) override;
  void convert_rows(Ref to, int64_t to_stride, ConstRef from, int64_t from_stride, int64_t rows,
                    int64_t columns) override;
  void add(Ref y, ConstRef x, int64_t count) override;

 private:
  // Bytes of workspace that one operation of the kind needs within `shape`. Operations do not overlap in
  // time, so the largest of these is what is granted; an operation that calls another counts both.
  size_t gemm_workspace_bytes(const WorkspaceShape& shape) const;        // gemm.cc
  size_t attention_workspace_bytes(const WorkspaceShape& shape) const;   // attention.cc
  size_t classifier_workspace_bytes(const WorkspaceShape& shape) const;  // classifier.cc
  size_t norm_workspace_bytes(const WorkspaceShape& shape) const;        // norm.cc

  // The first `bytes` of the granted workspace; a broken invariant, naming `operation`, if fewer were
  // granted.
  std::byte* workspace(size_t bytes, const char* operation) const;

  const int threads_;
  const Isa isa_;
  const VectorTable& vector_;
  std::span<std::byte> workspace_;
  const Products products_;
};

}  // namespace trainer
