// The tiles for AVX2 and FMA.
#include "cpu/tile_table.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>
#include <utility>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#define TRAINER_ISA avx2
#define TRAINER_VECTOR_WIDTH 8
#include "cpu/tile_softmax.h"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace trainer {

const TileTable avx2_tiles = avx2::kTileTable;

}  // namespace trainer

#endif
