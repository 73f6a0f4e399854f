#include "dsp/dsp_kernels.h"

#include "base/error.h"

namespace trainer {
namespace {

// Vector instructions for each vector of elements. Nearly all passes wait for DDR: at its published rate, a
// cluster has time for some hundred instructions on what it moves.
constexpr int64_t kNormForwardOperations = 20, kNormBackwardOperations = 32, kRopeOperations = 6,
                  kActivationForwardOperations = 16, kActivationBackwardOperations = 24,
                  kAdamWOperations = 48;  // those on fp32 count twice
constexpr int64_t kHalf = dsp::kHalfBytes, kWord = 4;

}  // namespace

DspKernels::DspKernels(bool with_values, const dsp::Machine& machine)
    : machine_(machine), with_values_(with_values), reference_(make_reference_kernels()) {}

std::map<std::string, OperationCount> DspKernels::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

int64_t DspKernels::cycles() const {
  int64_t cycles = 0;
  for (const auto& [operation, count] : counts()) cycles += count.cycles;
  return cycles;
}

size_t DspKernels::workspace_bytes(const WorkspaceShape& shape) const {
  if (shape.dtype != DType::kF32)
    input_error("the {} takes activations in fp32 and rounds them itself; it cannot compute in {}", name(),
                name_of(shape.dtype));
  if (shape.tensor_ranks > 1)
    input_error("the {} cannot share a classifier with {} other ranks", name(), shape.tensor_ranks - 1);
  if (shape.heads > 0) attention_of({padded(shape.sequence), padded(shape.head_dim)});
  return 0;
}

void DspKernels::book(const char* operation, const dsp::Count& count, int64_t calls) {
  const std::lock_guard lock(mutex_);
  OperationCount& sum = counts_[operation];
  sum.calls += calls;
  sum.cycles += calls * count.cycles;
  sum.compute_cycles += calls * count.compute_cycles;
  sum.ddr_bytes += calls * count.ddr_bytes;
}

template <class Run>
void DspKernels::pass(const char* operation, int64_t rows, int64_t columns, int64_t operations,
                      int64_t bytes_each, Run run) {
  if (rows * columns > 0)
    book(operation, dsp::count_pass(machine_, {.rows = rows,
                                               .columns = columns,
                                               .operations = operations,
                                               .ddr_bytes = rows * columns * bytes_each}));
  if (with_values_) run(*reference_);
}

void DspKernels::require_floats(std::initializer_list<ConstRef> arrays) const {
  for (const ConstRef& array : arrays)
    require(!array || array.dtype == DType::kF32, "an operation of the {} is given {}", name(),
            name_of(array.dtype));
}

void DspKernels::bias_backward(float* db, ConstRef dy, int64_t m, int64_t n) {
  pass("bias backward", m, n, 1, kHalf, [&](KernelSet& k) { k.bias_backward(db, dy, m, n); });
}

void DspKernels::embedding_forward(Ref y, const int32_t* tokens, ConstRef table, const int32_t* positions,
                                   ConstRef position_table, int64_t count, int64_t hidden) {
  require_floats({y, table, position_table});
  pass("embedding forward", count, hidden, 1, (position_table ? 3 : 2) * kHalf, [&](KernelSet& k) {
    k.embedding_forward(y, tokens, table, positions, position_table, count, hidden);
  });
}

void DspKernels::embedding_backward(float* dtable, const int32_t* tokens, float* dposition,
                                    const int32_t* positions, ConstRef dy, int64_t count, int64_t hidden) {
  require_floats({dy});
  pass("embedding backward", count, hidden, 2, kHalf + (dposition ? 4 : 2) * kWord,
       [&](KernelSet& k) { k.embedding_backward(dtable, tokens, dposition, positions, dy, count, hidden); });
}

void DspKernels::norm_forward(const NormForward& a) {
  require_floats({a.x, a.delta, a.sum, a.weight, a.bias, a.y});
  pass("norm forward", a.x_shape.outer * a.x_shape.inner, a.x_shape.columns, kNormForwardOperations,
       (a.delta ? 4 : 2) * kHalf, [&](KernelSet& k) { k.norm_forward(a); });
}

void DspKernels::norm_backward(const NormBackward& a) {
  require_floats({a.x, a.weight, a.dy, a.dresidual, a.dx});
  pass("norm backward", a.x_shape.outer * a.x_shape.inner, a.x_shape.columns, kNormBackwardOperations,
       (a.dresidual ? 4 : 3) * kHalf, [&](KernelSet& k) { k.norm_backward(a); });
}

void DspKernels::rope(Ref out, ConstRef in, const RopeArguments& a) {
  require_floats({out, in});
  pass("rope", a.tokens, a.heads * a.head_dim, kRopeOperations, 2 * kHalf,
       [&](KernelSet& k) { k.rope(out, in, a); });
}

void DspKernels::swiglu_forward(Ref y, ConstRef gate_up, int64_t tokens, int64_t ffn) {
  require_floats({y, gate_up});
  pass("activation forward", tokens, ffn, kActivationForwardOperations, 3 * kHalf,
       [&](KernelSet& k) { k.swiglu_forward(y, gate_up, tokens, ffn); });
}

void DspKernels::swiglu_backward(Ref dgate_up, ConstRef dy, ConstRef gate_up, int64_t tokens, int64_t ffn) {
  require_floats({dgate_up, dy, gate_up});
  pass("activation backward", tokens, ffn, kActivationBackwardOperations, 5 * kHalf,
       [&](KernelSet& k) { k.swiglu_backward(dgate_up, dy, gate_up, tokens, ffn); });
}

void DspKernels::gelu_forward(Ref y, ConstRef x, int64_t count, bool exact) {
  require_floats({y, x});
  pass("activation forward", 1, count, kActivationForwardOperations, 2 * kHalf,
       [&](KernelSet& k) { k.gelu_forward(y, x, count, exact); });
}

void DspKernels::gelu_backward(Ref dx, ConstRef dy, ConstRef x, int64_t count, bool exact) {
  require_floats({dx, dy, x});
  pass("activation backward", 1, count, kActivationBackwardOperations, 3 * kHalf,
       [&](KernelSet& k) { k.gelu_backward(dx, dy, x, count, exact); });
}

void DspKernels::adamw(const AdamW& a) {
  pass("optimizer", 1, a.count, kAdamWOperations, 7 * kWord + kHalf, [&](KernelSet& k) { k.adamw(a); });
}

void DspKernels::block_squares(double* squares, const float* x, int64_t count) {
  pass("gradient squares", 1, count, 2, kWord, [&](KernelSet& k) { k.block_squares(squares, x, count); });
}

void DspKernels::fill_zero(void* data, size_t bytes) {
  pass("zero", 1, static_cast<int64_t>(bytes), 0, 1, [&](KernelSet& k) { k.fill_zero(data, bytes); });
}

void DspKernels::convert(Ref to, ConstRef from, int64_t count) {
  require_floats({to, from});
  pass("copy", 1, count, 1, 2 * kHalf, [&](KernelSet& k) { k.convert(to, from, count); });
}

void DspKernels::convert_rows(Ref to, int64_t to_stride, ConstRef from, int64_t from_stride, int64_t rows,
                              int64_t columns) {
  require_floats({to, from});
  pass("copy", rows, columns, 1, 2 * kHalf,
       [&](KernelSet& k) { k.convert_rows(to, to_stride, from, from_stride, rows, columns); });
}

void DspKernels::add(Ref y, ConstRef x, int64_t count) {
  require_floats({y, x});
  pass("add", 1, count, 1, 3 * kHalf, [&](KernelSet& k) { k.add(y, x, count); });
}

}  // namespace trainer
