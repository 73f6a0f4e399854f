// KernelSet over the device kernels, for both of their builds.
//
// Every pointer is to memory of the device, but for AttentionShape::document_starts and what a call returns.
// Calls start kernels in the stream and return, except `classifier`, which waits for its result. Document
// starts in pinned memory must last until the stream has read them.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "cuda/backend.h"
#include "ops/kernel_set.h"

namespace trainer::TRAINER_DEVICE_NAMESPACE {

// Matrix products, with the meanings of gemm.h. x and w (dy and w, dy and x) have one element type; the
// result of `nt` may have the other. `workspace`: at least what workspace_bytes said, aligned to 64 bytes.
class Products {
 public:
  virtual ~Products() = default;
  virtual std::string name() const = 0;
  virtual size_t workspace_bytes(const WorkspaceShape& shape) const = 0;

  virtual void nt(Ref y, ConstRef x, ConstRef w, ConstRef bias, int64_t m, int64_t n, int64_t k,
                  std::span<std::byte> workspace, Stream stream) = 0;
  virtual void nn(Ref dx, ConstRef dy, ConstRef w, int64_t m, int64_t n, int64_t k, bool accumulate,
                  std::span<std::byte> workspace, Stream stream) = 0;
  virtual void tn(float* dw, ConstRef dy, ConstRef x, int64_t m, int64_t n, int64_t k, bool accumulate,
                  std::span<std::byte> workspace, Stream stream) = 0;
};
// Those of gemm.h, which run everywhere.
std::unique_ptr<Products> make_tile_products();

// Attention, with the meanings of attention.h. `workspace` as for products.
class Attention {
 public:
  virtual ~Attention() = default;
  virtual std::string name() const = 0;
  virtual size_t workspace_bytes(const WorkspaceShape& shape) const = 0;

  virtual void forward(Ref out, float* log_sum_exp, ConstRef q, ConstRef k, ConstRef v,
                       const AttentionShape& s, const int32_t* document_first, std::span<std::byte> workspace,
                       Stream stream) = 0;
  virtual void backward(Ref dq, float* dk, float* dv, ConstRef dout, ConstRef out, const float* log_sum_exp,
                        ConstRef q, ConstRef k, ConstRef v, const AttentionShape& s,
                        const int32_t* document_first, std::span<std::byte> workspace, Stream stream) = 0;
};
// That of attention.h, which takes all shapes.
std::unique_ptr<Attention> make_block_attention();

class DeviceKernels : public KernelSet {
 public:
  // The stream is the caller's and outlives this. `chunk_tokens`: whose logits the classifier has at a time;
  // 0: as many as its products need to be fast.
  DeviceKernels(std::unique_ptr<Products> products, std::unique_ptr<Attention> attention, Stream stream,
                int64_t chunk_tokens = 0);

  std::string name() const override;
  size_t workspace_bytes(const WorkspaceShape& shape) const override;
  void grant_workspace(std::span<std::byte> workspace) override;

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
  // A group that shares the vocabulary exchanges memory of the device, in order with the stream.
  ClassifierResult classifier(const Classifier& a) override;
  void adamw(const AdamW& a) override;
  void block_squares(double* squares, const float* x, int64_t count) override;
  void fill_zero(void* data, size_t bytes) override;
  void convert(Ref to, ConstRef from, int64_t count) override;
  void convert_rows(Ref to, int64_t to_stride, ConstRef from, int64_t from_stride, int64_t rows,
                    int64_t columns) override;
  void add(Ref y, ConstRef x, int64_t count) override;

 private:
  class Scratch;
  int64_t chunk_tokens(int64_t largest_part) const;
  const int32_t* first_of_documents(Scratch& scratch, const AttentionShape& s);

  std::unique_ptr<Products> products_;
  std::unique_ptr<Attention> attention_;
  Stream stream_;
  int64_t chunk_tokens_;
  std::span<std::byte> workspace_;
};

}  // namespace trainer::TRAINER_DEVICE_NAMESPACE
