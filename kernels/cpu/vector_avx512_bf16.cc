// The vector loops for AVX-512 with BF16.
#include "cpu/vector_table.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

#if defined(__clang__)
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma"))), apply_to = function)
#else
// GCC 12 takes the deliberately undefined operand inside its own intrinsics for a mistake.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,prefer-vector-width=512")
#endif
#define TRAINER_ISA avx512_bf16
#define TRAINER_VECTOR_WIDTH 16
#define TRAINER_BF16 1
#include "cpu/vector_loops.h"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace trainer {

const VectorTable avx512_bf16_table = avx512_bf16::kTable;

}  // namespace trainer

#endif
