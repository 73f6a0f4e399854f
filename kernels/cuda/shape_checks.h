// What the launchers of products and attention refuse; apart from them, so that nvcc need not read the
// headers of errors. Each throws std::logic_error that says what is wrong.
#pragma once

#include <cstdint>

#include "cuda/backend.h"
#include "ops/kernel_set.h"

namespace trainer::TRAINER_DEVICE_NAMESPACE {

inline constexpr int64_t kLargestHeadDim = 128;

// c [m, n] from operands of types a and b, sums over k.
void check_product(DType a, DType b, int64_t m, int64_t n, int64_t k);
// `type`: of q, k, v and what is computed from them, which are `operands`.
void check_attention(const AttentionShape& s, DType type, std::initializer_list<ConstRef> operands);
void check_attention_workspace(size_t granted, size_t needed);

}  // namespace trainer::TRAINER_DEVICE_NAMESPACE
