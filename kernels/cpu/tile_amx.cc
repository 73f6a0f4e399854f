// The tiles for AMX with BF16: operands of bf16, in pairs.
#include "cpu/tile_table.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>
#include <utility>

#if defined(__clang__)
#pragma clang attribute push(                                                                        \
    __attribute__((                                                                                  \
        target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-tile,amx-bf16,prfchw,avx2,fma"))), \
    apply_to = function)
#else
// GCC 12 takes the deliberately undefined operand inside its own intrinsics for a mistake.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC push_options
#pragma GCC target( \
    "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-tile,amx-bf16,prfchw,avx2,fma,prefer-vector-width=512")
#endif
#define TRAINER_ISA amx
#define TRAINER_VECTOR_WIDTH 16
#define TRAINER_BF16 1
#define TRAINER_AMX 1
#include "cpu/tile_softmax.h"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace trainer {

const TileTable amx_tiles = amx::kTileTable;

}  // namespace trainer

#endif
