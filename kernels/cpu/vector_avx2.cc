// The vector loops for AVX2 and FMA.
#include "cpu/vector_table.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#define TRAINER_ISA avx2
#define TRAINER_VECTOR_WIDTH 8
#include "cpu/vector_loops.h"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace trainer {

const VectorTable avx2_table = avx2::kTable;

}  // namespace trainer

#endif
