// Register tiles (tile_table.h) of the instruction level being compiled.
#pragma once

#include <utility>

#include "cpu/tile_finish.h"
#include "cpu/tile_packing.h"

namespace trainer::TRAINER_ISA {

// A tile is two vectors wide and as tall as the registers allow beside two vectors of B and an element of A.
constexpr int kTileRows = kWidth == 16 ? 14 : 6;
constexpr int kTileWidth = kWidth == 16 ? 16 : 8;
// Where a tile of keys begins, pairs begin.
constexpr bool kEven = kSlotElements == 1;
constexpr int64_t kSlotMultiple = 1;
constexpr bool kAnyRows = false;
constexpr int64_t kTaskBytes = 256 << 10;
constexpr void (*kBegin)() = nullptr, (*kEnd)() = nullptr;

#if TRAINER_BF16
inline void pack_a(const TilePacking& p) { pack_slots(p, kSlotMultiple); }
inline void pack_b(const TilePacking& p) { pack_slots(p, kSlotMultiple); }
#else
inline void pack_a(const TilePacking& p) { pack(p); }
inline void pack_b(const TilePacking& p) { pack(p); }
#endif

#if TRAINER_BF16

// sum + the slot *a times each slot of b.
inline Floats multiply_slot(const float* a, Floats b, Floats sum) {
  asm("vdpbf16ps %1%{1to16%}, %2, %0" : "+v"(sum) : "m"(*a), "v"(b));
  return sum;
}

template <size_t kRow>
inline void multiply_row(Floats (&sum)[2], const float* a, Floats left, Floats right) {
  if constexpr (kRow % 2 == 1) {
    sum[0] = multiply_slot(a, left, sum[0]);
    sum[1] = multiply_slot(a, right, sum[1]);
  } else {
    int32_t slot;
    std::memcpy(&slot, a, sizeof(slot));
    const auto value = reinterpret_cast<__m512bh>(_mm512_set1_epi32(slot));
    sum[0] = _mm512_dpbf16_ps(sum[0], value, reinterpret_cast<__m512bh>(left));
    sum[1] = _mm512_dpbf16_ps(sum[1], value, reinterpret_cast<__m512bh>(right));
  }
}

#else

// x - 0 is x for every x, and a compiler knows; x + 0 is not, and would cost an instruction of the kind that
// products are limited by.
inline Floats splat(float value) { return value - Floats{}; }

// One element of A in a row of a tile. Most rows read it with each product, which spares instructions, of
// which cores with a second thread have few; the others once for both, as many as keep loads from being the
// limit.
template <size_t kRow>
inline void multiply_row(Floats (&sum)[2], const float* a, Floats left, Floats right) {
#if TRAINER_VECTOR_WIDTH == 16
  if constexpr (kRow % 7 != 0) {
    sum[0] = multiply_add_from(a, left, sum[0]);
    sum[1] = multiply_add_from(a, right, sum[1]);
    return;
  }
#endif
  const Floats value = splat(*a);
  sum[0] = multiply_add(value, left, sum[0]);
  sum[1] = multiply_add(value, right, sum[1]);
}

#endif

template <TileForm kForm, size_t... kRow>
inline void multiply_rows(const TileProduct& p, float* c, const float* a, const char* next, int64_t next_step,
                          std::index_sequence<kRow...>) {
  constexpr bool kPacked = kForm == TileForm::kPacked;
  constexpr int64_t kRowStride = kPacked ? 1 : kQueryBlock / kSlotElements, kStep = kPacked ? kTileWidth : 1;
  const int64_t c_stride = p.c_stride, b_stride = p.b_stride;
  const float* b = p.b;
  Floats sum[sizeof...(kRow)][2] = {};
  (__builtin_prefetch(c + kRow * c_stride, 1), ...);
  (__builtin_prefetch(c + kRow * c_stride + kPanel - 1, 1), ...);
  const auto step = [&](int64_t ahead) __attribute__((always_inline)) {
    const Floats left = load(b + ahead * b_stride, All{}), right = load(b + ahead * b_stride + kWidth, All{});
    (multiply_row<kRow>(sum[kRow], a + kRow * kRowStride + ahead * kStep, left, right), ...);
  };
  int64_t kk = p.k;
  for (; kk >= 4; kk -= 4) {
    step(0);
    __builtin_prefetch(next, 0, 2);
    step(1);
    step(2);
    __builtin_prefetch(next + 2 * next_step, 0, 2);
    step(3);
    a += 4 * kStep;
    b += 4 * b_stride;
    next += 4 * next_step;
  }
  for (; kk > 0; --kk) {
    step(0);
    a += kStep;
    b += b_stride;
  }
  if (p.add) {
    ((sum[kRow][0] += load(c + kRow * c_stride, All{})), ...);
    ((sum[kRow][1] += load(c + kRow * c_stride + kWidth, All{})), ...);
  }
  (store(c + kRow * c_stride, sum[kRow][0], All{}), ...);
  (store(c + kRow * c_stride + kWidth, sum[kRow][1], All{}), ...);
}

// Out of line: a tile of full height uses every register.
template <TileForm kForm, int kHeight>
__attribute__((noinline)) void multiply_tile(const TileProduct& p, float* c, const float* a, const char* next,
                                             int64_t next_step) {
  multiply_rows<kForm>(p, c, a, next, next_step, std::make_index_sequence<kHeight>());
}

using TileFunction = void (*)(const TileProduct& p, float* c, const float* a, const char* next,
                              int64_t next_step);

template <TileForm kForm, size_t... kRow>
inline TileFunction tile_function(int64_t height, std::index_sequence<kRow...>) {
  static constexpr TileFunction kFunctions[] = {multiply_tile<kForm, kRow + 1>...};
  return kFunctions[height - 1];
}

inline int64_t first_row(int64_t m, int64_t tile) {
  const int64_t tiles = (m + kTileRows - 1) / kTileRows;
  return kEven ? tile * m / tiles : smaller(m, tile * kTileRows);
}

template <TileForm kForm>
inline void multiply_tiles(const TileProduct& p) {
  // Each tile asks for its share of the next panel, a little with every other k: of fewer than four tiles not
  // for all of it.
  const char* next = reinterpret_cast<const char*>(p.next_b ? p.next_b : p.b);
  const int64_t next_step = p.next_b ? kPanel * 4 / (p.tile_end - p.tile_begin) + 1 : 0;
  for (int64_t t = p.tile_begin; t < p.tile_end; ++t) {
    const int64_t row = first_row(p.m, t), height = first_row(p.m, t + 1) - row;
    const float* a = p.a + (kForm == TileForm::kPacked ? t * p.a_stride : row * kQueryBlock / kSlotElements);
    const TileFunction function = tile_function<kForm>(height, std::make_index_sequence<kTileRows>());
    function(p, p.c + row * p.c_stride, a, next, next_step);
    next += next_step * p.k;
  }
}

inline void multiply(const TileProduct& p) {
  if (p.form == TileForm::kPacked) return multiply_tiles<TileForm::kPacked>(p);
  multiply_tiles<TileForm::kRows>(p);
}

inline void multiply_finish(const TileProduct& p, const TileFinish& f) {
  multiply(p);
  const int64_t begin = first_row(p.m, p.tile_begin);
  const int64_t rows = first_row(p.m, p.tile_end) - begin;
  with_finish(f, [&]<class Finish>() { Finish::rows(f, p.c + begin * p.c_stride, begin, rows); });
}

}  // namespace trainer::TRAINER_ISA
