// The single-threaded vector loops of the host backend, one table per instruction level. The operations of
// HostKernels check their arguments, split the work over threads and call these.
//
// Element types are those of the refs. Loops work element by element or row by row: what is computed for an
// element does not depend on where the range given to a call begins or ends.
#pragma once

#include <cstdint>

#include "base/philox.h"
#include "cpu/isa.h"
#include "ops/kernel_set.h"

namespace trainer {

// What AdamW's per-element update needs, derived once per call (double precision, then rounded).
struct AdamWFactors {
  float gradient_scale, beta1, one_minus_beta1, beta2, one_minus_beta2;
  float step_size;        // learning rate / (1 - beta1^step)
  float root_correction;  // 1 / sqrt(1 - beta2^step)
  float epsilon;
  float decay;  // 1 - learning rate x weight decay
};

constexpr int kNormalPairs = 64;

struct VectorTable {
  // Rows [begin, end) of outer x inner. The partial sums, [columns] each, are added to; null: not wanted.
  void (*norm_forward)(const NormForward& a, int64_t begin, int64_t end);
  void (*norm_backward)(const NormBackward& a, int64_t begin, int64_t end, float* dweight, float* dbias);

  // Tokens [begin, end).
  void (*rope)(Ref out, ConstRef in, const RopeArguments& a, int64_t begin, int64_t end);

  // `columns` elements of one token: gate and up are read from, y and the gradients written to, these
  // addresses.
  void (*swiglu_forward)(Ref y, ConstRef gate, ConstRef up, int64_t columns);
  void (*swiglu_backward)(Ref dgate, Ref dup, ConstRef dy, ConstRef gate, ConstRef up, int64_t columns);
  void (*gelu_forward)(Ref y, ConstRef x, int64_t count, bool exact);
  void (*gelu_backward)(Ref dx, ConstRef dy, ConstRef x, int64_t count, bool exact);

  // Elements [begin, end).
  void (*adamw)(const AdamW& a, const AdamWFactors& factors, int64_t begin, int64_t end);
  double (*sum_of_squares)(const float* x, int64_t count);

  void (*convert)(Ref to, ConstRef from, int64_t count);
  // y = a + b, in fp32, rounded once; y may be a or b. Each of the three has its own element type.
  void (*sum)(Ref y, ConstRef a, ConstRef b, int64_t count);

  // Philox(key).normal of the indices from 2 x counter on, kNormalPairs pairs of them. Returns how many, at
  // which positions, may be off in their last bit and are to be computed again; few ever are.
  int (*normal_pairs)(uint64_t key, uint64_t counter, float* values, int* doubtful);
};

// One per level; those of levels above kPlain exist on x86-64 only.
extern const VectorTable plain_table, avx2_table, avx512_table, avx512_bf16_table;

const VectorTable& vector_table(Isa isa);

}  // namespace trainer
