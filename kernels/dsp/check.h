// The tile programs against the same mathematics in double precision, on random operands.
#pragma once

#include "dsp/attention.h"
#include "dsp/gemm.h"

namespace trainer::dsp {

// The largest difference that fp16 storage explains, as a part of the largest value. GEMM rounds C once for
// each K_2; attention rounds P, GP, GS and each addition to GK, GV and GQ.
inline constexpr double kGemmTolerance = 2e-3;
inline constexpr double kAttentionTolerance = 1e-2;

// Standard normal operands of the seed, rounded to fp16. The largest difference from the reference in C, by
// the largest magnitude in it.
double gemm_error(const Machine& machine, const GemmProblem& problem, const GemmTile& tile, uint64_t seed);

// The same of the worst of GQ, GK and GV. P and O are the reference's, rounded to fp16.
double attention_error(const Machine& machine, const AttentionProblem& problem, const AttentionTile& tile,
                       Staging staging, uint64_t seed);

// Operands of attention's backward and its gradients, in double precision from Q, K, V and GO, which are
// rounded to fp16; causal, scale 1 / sqrt(head_dim).
struct AttentionReference {
  AttentionReference(const AttentionProblem& problem, uint64_t seed);
  AttentionOperands operands() const;

  std::vector<float> q, k, v, out, grad_out;  // [sequence, head_dim]
  std::vector<float> probabilities;           // [sequence, sequence]
  std::vector<double> grad_q, grad_k, grad_v;
  float scale;
};

}  // namespace trainer::dsp
