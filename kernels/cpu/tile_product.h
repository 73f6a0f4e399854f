// Packing, register tiles and finishing (tile_table.h) of the instruction level being compiled.
#pragma once

#include <utility>

#include "cpu/tile_table.h"
#include "cpu/vector.h"

namespace trainer::TRAINER_ISA {

// A tile is two vectors wide and as tall as the registers allow beside two vectors of B and an element of A.
constexpr int kTileRows = kWidth == 16 ? 14 : 6;
constexpr int kTileWidth = kWidth == 16 ? 16 : 8;
constexpr int kPanel = 2 * kWidth;

// x - 0 is x for every x, and a compiler knows; x + 0 is not, and would cost an instruction of the kind that
// products are limited by.
inline Floats splat(float value) { return value - Floats{}; }

template <int kDistance, size_t... kLane>
inline Floats low_blocks(Floats a, Floats b, std::index_sequence<kLane...>) {
  return __builtin_shufflevector(a, b, ((kLane & kDistance) ? kWidth + kLane - kDistance : kLane)...);
}
template <int kDistance, size_t... kLane>
inline Floats high_blocks(Floats a, Floats b, std::index_sequence<kLane...>) {
  return __builtin_shufflevector(a, b, ((kLane & kDistance) ? kWidth + kLane : kLane + kDistance)...);
}

// Transposes kWidth x kWidth by exchanging the off-diagonal blocks of kDistance, kDistance / 2, ..., 1.
template <int kDistance = kWidth / 2>
inline void transpose(Floats (&rows)[kWidth]) {
  constexpr auto kLanes = std::make_index_sequence<kWidth>();
  for (int i = 0; i < kWidth; ++i) {
    if (i & kDistance) continue;
    const Floats a = rows[i], b = rows[i + kDistance];
    rows[i] = low_blocks<kDistance>(a, b, kLanes);
    rows[i + kDistance] = high_blocks<kDistance>(a, b, kLanes);
  }
  if constexpr (kDistance > 1) transpose<kDistance / 2>(rows);
}

// Up to kWidth rows with contiguous k.
template <class T>
inline void pack_transposed(float* to, const T* from, int64_t rows, const TilePacking& p) {
  for_vectors(0, p.k, [&](int64_t kk, auto lanes) {
    Floats block[kWidth];
    if (rows >= kWidth) {
      for (int r = 0; r < kWidth; ++r) block[r] = load(from + r * p.row_stride + kk, lanes);
    } else {
      for (int r = 0; r < kWidth; ++r)
        block[r] = r < rows ? load(from + r * p.row_stride + kk, lanes) : Floats{};
    }
    transpose(block);
    const int64_t count = p.k - kk < kWidth ? p.k - kk : kWidth;
    for (int64_t i = 0; i < count; ++i) store(to + (kk + i) * p.to_stride, block[i] * p.scale, All{});
  });
}

// Up to kWidth contiguous rows. A whole vector may be read wherever another k follows at least a vector
// further on.
template <class T>
inline void pack_contiguous(float* to, const T* from, int64_t rows, const TilePacking& p) {
  int64_t kk = 0;
  if (rows >= kWidth || p.k_stride >= kWidth) {
    const int64_t whole = rows >= kWidth ? p.k : p.k - 1;
    for (; kk < whole; ++kk) {
      store(to + kk * p.to_stride, load(from + kk * p.k_stride, All{}) * p.scale, All{});
    }
  }
  for (; kk < p.k; ++kk) {
    store(to + kk * p.to_stride, load(from + kk * p.k_stride, First{rows}) * p.scale, All{});
  }
}

inline void pack(const TilePacking& p) {
  with_type(p.from.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* from = elements<T>(p.from);
    for (int64_t row = 0; row < p.width; row += kWidth) {
      const int64_t rows = p.rows - row;
      if (rows <= 0) {
        for (int64_t kk = 0; kk < p.k; ++kk) store(p.to + kk * p.to_stride + row, Floats{}, All{});
      } else if (p.row_stride == 1) {
        pack_contiguous(p.to + row, from + row, rows, p);
      } else {
        pack_transposed(p.to + row, from + row * p.row_stride, rows, p);
      }
    }
  });
}

// One element of A in a row of a tile. Odd rows read it with each product, even ones once for both: neither
// the loads nor the instructions, of which cores with a second thread have few, then limit the products.
template <size_t kRow>
inline void multiply_row(Floats (&sum)[2], const float* a, Floats left, Floats right) {
#if TRAINER_VECTOR_WIDTH == 16
  if constexpr (kRow % 2 == 1) {
    sum[0] = multiply_add_from(a, left, sum[0]);
    sum[1] = multiply_add_from(a, right, sum[1]);
    return;
  }
#endif
  const Floats value = splat(*a);
  sum[0] = multiply_add(value, left, sum[0]);
  sum[1] = multiply_add(value, right, sum[1]);
}

template <TileForm kForm, size_t... kRow>
inline void multiply_rows(const TileProduct& p, float* c, const float* a, int64_t a_stride, const char* next,
                          int64_t next_step, std::index_sequence<kRow...>) {
  constexpr int64_t kRowStride = kForm == TileForm::kRows ? kQueryBlock : 1;
  const int64_t c_stride = p.c_stride, b_stride = p.b_stride;
  const float* b = p.b;
  Floats sum[sizeof...(kRow)][2] = {};
  (__builtin_prefetch(c + kRow * c_stride, 1), ...);
  (__builtin_prefetch(c + kRow * c_stride + kPanel - 1, 1), ...);
  for (int64_t kk = p.k; kk > 0; --kk) {
    const Floats left = load(b, All{}), right = load(b + kWidth, All{});
    (multiply_row<kRow>(sum[kRow], a + kRow * kRowStride, left, right), ...);
    __builtin_prefetch(next, 0, 2);
    a += a_stride;
    b += b_stride;
    next += next_step;
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
__attribute__((noinline)) void multiply_tile(const TileProduct& p, float* c, const float* a, int64_t a_stride,
                                             const char* next, int64_t next_step) {
  multiply_rows<kForm>(p, c, a, a_stride, next, next_step, std::make_index_sequence<kHeight>());
}

using TileFunction = void (*)(const TileProduct& p, float* c, const float* a, int64_t a_stride,
                              const char* next, int64_t next_step);

template <TileForm kForm, size_t... kRow>
inline TileFunction tile_function(int64_t height, std::index_sequence<kRow...>) {
  static constexpr TileFunction kFunctions[] = {multiply_tile<kForm, kRow + 1>...};
  return kFunctions[height - 1];
}

template <TileForm kForm>
inline void multiply_tiles(const TileProduct& p) {
  const int64_t tiles = (p.m + kTileRows - 1) / kTileRows;
  // Each tile asks for its share of the next panel, a little with every k.
  const char* next = reinterpret_cast<const char*>(p.next_b ? p.next_b : p.b);
  const int64_t next_step = p.next_b ? kPanel * 4 / (p.tile_end - p.tile_begin) + 1 : 0;
  for (int64_t t = p.tile_begin; t < p.tile_end; ++t) {
    const int64_t row = t * p.m / tiles, height = (t + 1) * p.m / tiles - row;
    const float* a = p.a;
    int64_t a_stride = p.a_stride;
    if constexpr (kForm == TileForm::kPacked) {
      a += t * p.k * kTileWidth;
      a_stride = kTileWidth;
    } else if constexpr (kForm == TileForm::kColumns) {
      a += row;
    } else {
      a += row * kQueryBlock;
      a_stride = 1;
    }
    tile_function<kForm>(height, std::make_index_sequence<kTileRows>())(p, p.c + row * p.c_stride, a,
                                                                        a_stride, next, next_step);
    next += next_step * p.k;
  }
}

inline void multiply(const TileProduct& p) {
  switch (p.form) {
    case TileForm::kPacked:
      return multiply_tiles<TileForm::kPacked>(p);
    case TileForm::kColumns:
      return multiply_tiles<TileForm::kColumns>(p);
    case TileForm::kRows:
      return multiply_tiles<TileForm::kRows>(p);
  }
}

inline void finish(const TileFinish& f) {
  with_type(f.c.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    with_type(f.bias.dtype, [&](auto* bias_type) {
      using B = std::remove_pointer_t<decltype(bias_type)>;
      const B* bias = elements<B>(f.bias);
      for (int64_t row = 0; row < f.rows; ++row) {
        T* c = elements<T>(f.c) + row * f.c_stride;
        const float* tile = f.tile + row * kPanel;
        for_vectors(0, f.columns, [&](int64_t i, auto lanes) {
          Floats value = load(tile + i, lanes);
          if (bias) value += load(bias + i, lanes);
          if (f.add) value += load(c + i, lanes);
          store(c + i, value, lanes);
        });
      }
    });
  });
}

}  // namespace trainer::TRAINER_ISA
