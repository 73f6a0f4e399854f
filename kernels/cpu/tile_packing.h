// Packing of operands for the tiles (tile_table.h) of the instruction level being compiled. Where it has
// bf16 instructions (TRAINER_BF16) slots are pairs of bf16.
#pragma once

#include "cpu/tile_table.h"
#include "cpu/vector.h"

namespace trainer::TRAINER_ISA {

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
__attribute__((always_inline)) inline void transpose(Floats (&rows)[kWidth]) {
  unrolled<kWidth>([&](auto r) {
    if constexpr ((decltype(r)::value & kDistance) == 0) {
      constexpr auto kLanes = std::make_index_sequence<kWidth>();
      const Floats a = rows[r], b = rows[r + kDistance];
      rows[r] = low_blocks<kDistance>(a, b, kLanes);
      rows[r + kDistance] = high_blocks<kDistance>(a, b, kLanes);
    }
  });
  if constexpr (kDistance > 1) transpose<kDistance / 2>(rows);
}

// Stores kWidth vectors, to_stride apart.
__attribute__((always_inline)) inline void store_vectors(float* to, int64_t to_stride,
                                                         const Floats (&rows)[kWidth]) {
  unrolled<kWidth>([&](auto r) { store(to + r * to_stride, rows[r], All{}); });
}

#if TRAINER_BF16

constexpr int kSlotElements = 2;

// The first `count` of a vector's elements, for masked loads.
inline uint32_t first_of(int64_t count) { return count >= 32 ? ~0u : (1u << (count > 0 ? count : 0)) - 1u; }

// kWidth slots of a row that has `count` more elements; 0 beyond them.
inline Floats load_slots(const uint16_t* from, int64_t count) {
  return reinterpret_cast<Floats>(_mm512_maskz_loadu_epi16(first_of(count), from));
}

// Slots of up to kWidth rows that are neighbours in memory: `low` and `high` are their next two elements of
// k.
inline Floats interleave(const uint16_t* low, const uint16_t* high, bool both, __mmask16 rows) {
  const auto words = [&](const uint16_t* from) {
    return reinterpret_cast<Words>(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(rows, from)));
  };
  return as_floats(both ? words(low) | words(high) << 16 : words(low));
}

// kWidth slots of k of up to kWidth rows, slot by slot, where k is contiguous.
inline void slots_of_rows(Floats (&slots)[kWidth], const uint16_t* from, int64_t row_stride, int64_t rows,
                          int64_t k) {
  unrolled<kWidth>([&](auto r) { slots[r] = r < rows ? load_slots(from + r * row_stride, k) : Floats{}; });
  transpose(slots);
}

// The same where rows are contiguous.
inline void slots_of_columns(Floats (&slots)[kWidth], const uint16_t* from, int64_t k_stride, int64_t rows,
                             int64_t k) {
  const auto mask = static_cast<__mmask16>(first_of(rows < kWidth ? rows : kWidth));
  unrolled<kWidth>([&](auto i) {
    const uint16_t* at = from + 2 * i * k_stride;
    slots[i] = 2 * i < k ? interleave(at, at + k_stride, 2 * i + 1 < k, mask) : Floats{};
  });
}

// kWidth slots from `slot` on of up to kWidth rows from `row` on; 0 where there are none.
inline void slots_of(Floats (&slots)[kWidth], const TilePacking& p, int64_t row, int64_t slot) {
  const int64_t rows = p.rows - row, k = p.k - 2 * slot;
  const uint16_t* from = elements<uint16_t>(p.from) + row * p.row_stride + 2 * slot * p.k_stride;
  if (rows <= 0) {
    unrolled<kWidth>([&](auto i) { slots[i] = Floats{}; });
  } else if (p.row_stride == 1) {
    slots_of_columns(slots, from, p.k_stride, rows, k);
  } else {
    slots_of_rows(slots, from, p.row_stride, rows, k);
  }
}

// Slot by slot, all rows of each together.
__attribute__((flatten)) inline void pack_slots(const TilePacking& p, int64_t multiple) {
  const int64_t slots = (p.k + 2 * multiple - 1) / (2 * multiple) * multiple;
  for (int64_t row = 0; row < p.width; row += kWidth) {
    for (int64_t slot = 0; slot < slots; slot += kWidth) {
      Floats block[kWidth];
      slots_of(block, p, row, slot);
      float* const to = p.to + slot * p.to_stride + row;
      if (slots - slot >= kWidth) {
        store_vectors(to, p.to_stride, block);
      } else {
        unrolled<kWidth>([&](auto i) {
          if (slot + i < slots) store(to + i * p.to_stride, block[i], All{});
        });
      }
    }
  }
}

#else

constexpr int kSlotElements = 1;

// Up to kWidth rows with contiguous k; the last of them also in the place of those that there are not.
template <class T>
__attribute__((flatten)) inline void pack_transposed(float* to, const T* from, int64_t rows,
                                                     const TilePacking& p) {
  const int64_t last = smaller(rows, kWidth) - 1;
  const auto load_block = [&](Floats(&block)[kWidth], int64_t kk, auto lanes) __attribute__((always_inline)) {
    unrolled<kWidth>([&](auto r) {
      block[r] = load(from + smaller(static_cast<int64_t>(r), last) * p.row_stride + kk, lanes);
    });
    transpose(block);
  };
  Floats block[kWidth];
  int64_t kk = 0;
  for (; kk + kWidth <= p.k; kk += kWidth) {
    load_block(block, kk, All{});
    store_vectors(to + kk * p.to_stride, p.to_stride, block);
  }
  if (kk == p.k) return;
  Floats rest[kWidth];
  load_block(rest, kk, First{p.k - kk});
  for (int64_t i = 0; kk + i < p.k; ++i) store(to + (kk + i) * p.to_stride, rest[i], All{});
}

// Up to kWidth contiguous rows. A whole vector may be read wherever another k follows at least a vector
// further on.
template <class T>
inline void pack_contiguous(float* to, const T* from, int64_t rows, const TilePacking& p) {
  int64_t kk = 0;
  if (rows >= kWidth || p.k_stride >= kWidth) {
    const int64_t whole = rows >= kWidth ? p.k : p.k - 1;
    for (; kk < whole; ++kk) {
      store(to + kk * p.to_stride, load(from + kk * p.k_stride, All{}), All{});
    }
  }
  for (; kk < p.k; ++kk) {
    store(to + kk * p.to_stride, load(from + kk * p.k_stride, First{rows}), All{});
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

#endif

}  // namespace trainer::TRAINER_ISA
