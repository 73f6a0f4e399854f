// A KernelSet that computes on a simulated MT-3000 cluster and counts its cycles. Simulated: time is counted,
// not measured, and says nothing about how long the simulation takes.
//
// Values. The products of linear layers and of the classifier, and attention's backward, are the tile
// programs of gemm.h and attention.h with their fp16 numerics: operands are rounded to fp16 on their way in,
// results when they are stored; memories that are too small are errors. Everything else is the reference's
// arithmetic on fp32 arrays. So calls take fp32 only, and values are rounded where they pass through a
// product. Gradients are of the sum of the losses, not their mean, and are accumulated over tokens and
// micro-batches in fp32 outside the products: they are large enough for fp16 without loss scaling. What is
// beyond 65504 becomes infinite, and the step is skipped as on any device.
//
// Cycles. Operations run one after the other. Products and attention's backward count as their programs do,
// each with the tile of fewest cycles; lengths that DMA cannot align are padded with zeros, and a transposed
// operand is transposed by the DMA that loads it. The others count as passes.h says: attention's forward by
// count_attention_ forward, the rest as element-wise passes, with 2 bytes for an element of activations,
// their gradients and working weights, as the machine would hold them, and 4 for parameters' gradients,
// masters and moments. A classifier is its three products and one pass for the softmax of each chunk of
// logits; AdamW reads and writes its state and writes working weights: 30 bytes an element.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "dsp/attention.h"
#include "dsp/gemm.h"
#include "dsp/passes.h"
#include "ops/kernel_set.h"

namespace trainer {

// Calls of one operation, and what they took together.
struct OperationCount {
  int64_t calls = 0;
  int64_t cycles = 0, compute_cycles = 0, ddr_bytes = 0;
  bool operator==(const OperationCount&) const = default;
};

class DspKernels final : public KernelSet {
 public:
  // Without values, operations count the same, but neither read nor write their arrays; a classifier's loss
  // is 0.
  explicit DspKernels(bool with_values = true, const dsp::Machine& machine = {});

  const dsp::Machine& machine() const { return machine_; }
  // Since the beginning, by operation.
  std::map<std::string, OperationCount> counts() const;
  int64_t cycles() const;  // of all of them

  std::string name() const override { return "simulated MT-3000 cluster"; }
  // None is needed. Throws InputError for what the cluster cannot do: a dtype other than fp32, attention that
  // no tile fits, vocabularies that are cut over ranks.
  size_t workspace_bytes(const WorkspaceShape& shape) const override;
  void grant_workspace(std::span<std::byte>) override {}

  // dsp_products.cc
  void linear_forward(Ref y, ConstRef x, ConstRef w, ConstRef bias, int64_t m, int64_t n, int64_t k) override;
  void linear_backward_input(Ref dx, ConstRef dy, ConstRef w, int64_t m, int64_t n, int64_t k,
                             bool accumulate) override;
  void linear_backward_weight(float* dw, ConstRef dy, ConstRef x, int64_t m, int64_t n, int64_t k,
                              bool accumulate) override;
  void attention_forward(Ref out, float* log_sum_exp, ConstRef q, ConstRef k, ConstRef v,
                         const AttentionShape& s) override;
  // Whole sequences only.
  void attention_backward(Ref dq, float* dk, float* dv, ConstRef dout, ConstRef out, const float* log_sum_exp,
                          ConstRef q, ConstRef k, ConstRef v, const AttentionShape& s) override;
  ClassifierResult classifier(const Classifier& a) override;

  // dsp_kernels.cc
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
  void adamw(const AdamW& a) override;
  void block_squares(double* squares, const float* x, int64_t count) override;
  void fill_zero(void* data, size_t bytes) override;
  void convert(Ref to, ConstRef from, int64_t count) override;
  void convert_rows(Ref to, int64_t to_stride, ConstRef from, int64_t from_stride, int64_t rows,
                    int64_t columns) override;
  void add(Ref y, ConstRef x, int64_t count) override;

 private:
  struct CountedTile {
    dsp::GemmTile tile;
    dsp::Count count;
  };
  struct CountedAttention {
    dsp::AttentionTile tile;
    dsp::Count forward, backward;
  };
  using Element = std::function<float(int64_t row, int64_t column)>;

  void book(const char* operation, const dsp::Count& count, int64_t calls = 1);
  // An element-wise pass, and with values `run` on the reference.
  template <class Run>
  void pass(const char* operation, int64_t rows, int64_t columns, int64_t operations, int64_t bytes_each,
            Run run);
  void require_floats(std::initializer_list<ConstRef> arrays) const;

  int64_t padded(int64_t elements) const;
  const CountedTile& tile_of(const dsp::GemmProblem& padded_problem);
  const CountedAttention& attention_of(const dsp::AttentionProblem& padded_problem) const;
  // Books A B and hands `store` each of its elements [m, n], when there are values.
  void product(const char* operation, const dsp::GemmProblem& problem, const Element& a, const Element& b,
               const std::function<void(int64_t row, int64_t column, float value)>& store);
  void attention_head_backward(Ref dq, float* dk, float* dv, ConstRef dout, ConstRef out,
                               const float* log_sum_exp, ConstRef q, ConstRef k, ConstRef v,
                               const AttentionShape& s, int64_t batch, int64_t head);
  void classifier_chunk(const Classifier& a, int64_t first, int64_t tokens, ClassifierResult& result);

  const dsp::Machine machine_;
  const bool with_values_;
  const std::unique_ptr<KernelSet> reference_;
  std::map<std::array<int64_t, 3>, CountedTile> tiles_;
  mutable std::map<std::array<int64_t, 2>, CountedAttention> attentions_;
  mutable std::mutex mutex_;  // collectives' lanes add and convert beside the compute lane
  std::map<std::string, OperationCount> counts_;
};

}  // namespace trainer
