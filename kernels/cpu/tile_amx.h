// Products of bf16 pairs by the tile registers of AMX: 32 x 32 of C at a time, in four registers. The
// processor multiplies 16 rows of 16 slots with 16 slots of 16 columns at once.
//
// Six of the eight registers are used, though a part of B is then loaded twice: two threads of a core share
// the registers behind them, and when both fill theirs, a load waits for every product that still reads the
// old contents (measured: 1.6 times slower with eight).
//
// For every 16 slots of k, a packed tile of A holds its 32 rows one after the other; a packed panel of B
// holds the 16 slots of its first 16 columns, then those of the others.
#pragma once

#include "cpu/tile_finish.h"
#include "cpu/tile_packing.h"

namespace trainer::TRAINER_ISA {

// Rows, columns and slots of one register.
constexpr int64_t kRegister = 16;
constexpr int64_t kTileRows = 2 * kRegister, kTileWidth = 2 * kRegister;
static_assert(kPanel == 2 * kRegister);
constexpr int64_t kSlotMultiple = kRegister;
constexpr bool kEven = false, kAnyRows = true;
constexpr int64_t kTaskBytes = 1 << 20;

struct alignas(64) RegisterShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16};
};
constexpr RegisterShapes kRegisterShapes;

__attribute__((flatten)) inline void pack_a(const TilePacking& p) {
  const uint16_t* from = elements<uint16_t>(p.from);
  const int64_t slots = (p.k + 2 * kRegister - 1) / (2 * kRegister) * kRegister;
  for (int64_t slot = 0; slot < slots; slot += kRegister) {
    for (int64_t row = 0; row < p.width; row += kRegister) {
      const int64_t rows = p.rows - row;
      Floats block[kWidth] = {};
      if (rows > 0 && p.row_stride == 1) {
        slots_of_columns(block, from + row + 2 * slot * p.k_stride, p.k_stride, rows, p.k - 2 * slot);
        transpose(block);
      } else {
        unrolled<kRegister>([&](auto r) {
          if (r < rows) block[r] = load_slots(from + (row + r) * p.row_stride + 2 * slot, p.k - 2 * slot);
        });
      }
      store_vectors(p.to + slot * kTileWidth + row * kRegister, kRegister, block);
    }
  }
}

__attribute__((flatten)) inline void pack_b(const TilePacking& p) {
  if (p.to_stride != kPanel) return pack_slots(p, kSlotMultiple);
  const int64_t slots = (p.k + 2 * kRegister - 1) / (2 * kRegister) * kRegister;
  for (int64_t slot = 0; slot < slots; slot += kRegister) {
    for (int64_t column = 0; column < p.width; column += kRegister) {
      Floats block[kWidth];
      slots_of(block, p, column, slot);
      store_vectors(p.to + slot * kPanel + column * kRegister, kRegister, block);
    }
  }
}

inline void shape_registers() { _tile_loadconfig(&kRegisterShapes); }
inline void release_registers() { _tile_release(); }
constexpr auto kBegin = shape_registers, kEnd = release_registers;

struct NoFinish {
  static constexpr bool kAny = false;
};

// Where the slots of a tile's rows lie.
struct TileRows {
  const float* a;
  int64_t row_bytes, lower;  // from a row to the next; slots from the upper 16 rows to the lower
  int64_t step;              // slots from 16 slots to the next
};

// Where the slots of a panel lie.
struct PanelSlots {
  const float* b;
  int64_t slot_bytes, right;  // from a slot to the next; slots from the left 16 columns to the right
  int64_t step;
};

// What is done beside the products of a tile, a little with every 16 slots: then the tile registers need not
// wait for it.
struct Beside {
  // A part of the next panel is brought closer.
  const char* next_b;
  int64_t b_bytes;  // with each step
  // And so are the rows of C which are about to be written; null: none are.
  const char* next_c = nullptr;
  int64_t c_stride = 0, c_bytes = 0;  // from a row to the next; of each row
  // The tile before is finished: its sums, and its first row; null: there is none.
  const float* sums = nullptr;
  int64_t row = 0;
};

// to[32, 32] = A B (+ from, where there is one). Registers 0 to 3 are C's, 4 is A's, 5 is B's. Inlined: what
// passed through memory would wait there behind all that a tile stores.
template <class Finish, bool kLower>
__attribute__((always_inline)) inline void multiply_block(float* to, int64_t to_stride, const float* from,
                                                          int64_t from_stride, TileRows a, PanelSlots b,
                                                          int64_t k, Beside beside,
                                                          const TileFinish* finish) {
  // Compilers do not know that tile loads read memory: what was stored before must be stored now.
  asm volatile("" ::: "memory");
  if (from) {
    const float* const low = from + kRegister * from_stride;
    _tile_loadd(0, from, from_stride * 4);
    _tile_loadd(1, from + kRegister, from_stride * 4);
    if (kLower) {
      _tile_loadd(2, low, from_stride * 4);
      _tile_loadd(3, low + kRegister, from_stride * 4);
    }
  } else {
    _tile_zero(0);
    _tile_zero(1);
    if (kLower) {
      _tile_zero(2);
      _tile_zero(3);
    }
  }
  const auto multiply_step = [&] {
    _tile_loadd(4, a.a, a.row_bytes);
    _tile_loadd(5, b.b, b.slot_bytes);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(5, b.b + b.right, b.slot_bytes);
    _tile_dpbf16ps(1, 4, 5);
    if (kLower) {
      _tile_loadd(4, a.a + a.lower, a.row_bytes);
      _tile_dpbf16ps(3, 4, 5);
      _tile_loadd(5, b.b, b.slot_bytes);
      _tile_dpbf16ps(2, 4, 5);
    }
    for (int64_t at = 0; at < beside.b_bytes; at += 64) __builtin_prefetch(beside.next_b + at, 0, 2);
    beside.next_b += beside.b_bytes;
    a.a += a.step;
    b.b += b.step;
  };
  // Within the last steps, when the tile before has left the store buffer; the same number of rows with each,
  // so that processors foresee the loops. The bound on `shift`, which no k reaches, is for the compiler:
  // without it whole products take 5 % longer.
  const int64_t steps = k / kRegister;
  int64_t step = 0;
  if (beside.next_c || beside.sums) {
    int shift = 0;
    while ((steps - steps / 4) << shift < kTileRows && shift < 5) ++shift;
    for (; step < steps - (kTileRows >> shift); ++step) multiply_step();
    for (; step < steps; ++step) {
      multiply_step();
      for (int64_t r = 0; r < 1 << shift; ++r) {
        __builtin_prefetch(beside.next_c, 1, 3);
        __builtin_prefetch(beside.next_c + beside.c_bytes - 1, 1, 3);
        beside.next_c += beside.c_stride;
        if constexpr (Finish::kAny) {
          if (beside.sums) {
            Finish::rows(*finish, beside.sums, beside.row, 1);
            beside.sums += kPanel;
            ++beside.row;
          }
        }
      }
    }
  }
  for (; step < steps; ++step) multiply_step();
  float* const low = to + kRegister * to_stride;
  _tile_stored(0, to, to_stride * 4);
  _tile_stored(1, to + kRegister, to_stride * 4);
  if (kLower) {
    _tile_stored(2, low, to_stride * 4);
    _tile_stored(3, low + kRegister, to_stride * 4);
  }
}

template <class Finish>
inline void multiply_tiles(const TileProduct& p, const TileFinish* finish) {
  const int64_t steps = p.k / kRegister;
  Beside beside{.next_b = reinterpret_cast<const char*>(p.next_b), .b_bytes = 0};
  if (p.next_b) {
    const int64_t shares = steps * (p.tile_end - p.tile_begin);
    beside.b_bytes = (p.k * kPanel * 4 / shares + 63) / 64 * 64;
  }
  const bool contiguous = p.b_stride == kPanel;
  const PanelSlots b{p.b, contiguous ? kRegister * 4 : p.b_stride * 4,
                     contiguous ? kRegister * kRegister : kRegister, kRegister * p.b_stride};
  // Sums that are not stored where C is: of a tile that is finished while the next one is multiplied, or of
  // one that has fewer rows than registers store.
  alignas(64) float blocks[2][kTileRows * kPanel];
  for (int64_t t = p.tile_begin; t < p.tile_end; ++t) {
    const bool packed = p.form == TileForm::kPacked;
    const TileRows a =
        packed
            ? TileRows{p.a + t * p.a_stride, kRegister * 4, kRegister * kRegister, kRegister * kTileWidth}
            : TileRows{p.a + t * kTileRows * p.a_stride, p.a_stride * 4, kRegister * p.a_stride, kRegister};
    const int64_t row = t * kTileRows, rows = smaller(p.m - row, kTileRows);
    const bool whole = rows == kTileRows;
    float* const c = p.c + row * p.c_stride;
    float* const block = blocks[t % 2];
    float* const to = Finish::kAny || !whole ? block : c;
    const float* from = p.add ? c : nullptr;
    if (from && !whole) {
      std::memset(block, 0, sizeof(blocks[0]));
      for (int64_t r = 0; r < rows; ++r)
        std::memcpy(block + r * kPanel, c + r * p.c_stride, kPanel * sizeof(float));
      from = block;
    }
    if constexpr (Finish::kAny) {
      const auto size = static_cast<int64_t>(size_of(finish->c.dtype));
      beside.next_c = static_cast<const char*>(finish->c.data) + row * finish->c_stride * size;
      beside.c_stride = finish->c_stride * size;
      beside.c_bytes = finish->columns * size;
    } else if (p.far_c) {
      const bool more = t + 1 < p.tile_end;
      beside.next_c = more ? reinterpret_cast<const char*>(c + kTileRows * p.c_stride) : nullptr;
      beside.c_stride = p.c_stride * 4;
      beside.c_bytes = kPanel * 4;
    }
    const int64_t to_stride = to == c ? p.c_stride : kPanel, from_stride = from == c ? p.c_stride : kPanel;
    if (rows > kRegister) {
      multiply_block<Finish, true>(to, to_stride, from, from_stride, a, b, p.k, beside, finish);
    } else {
      multiply_block<Finish, false>(to, to_stride, from, from_stride, a, b, p.k, beside, finish);
    }
    beside.next_b += steps * beside.b_bytes;
    if constexpr (Finish::kAny) {
      // Of all tiles but the last every row is C's.
      if (t + 1 == p.tile_end) return Finish::rows(*finish, block, row, rows);
      beside.sums = block;
      beside.row = row;
    } else if (!whole) {
      for (int64_t r = 0; r < rows; ++r)
        std::memcpy(c + r * p.c_stride, block + r * kPanel, kPanel * sizeof(float));
    }
  }
}

inline void multiply(const TileProduct& p) { multiply_tiles<NoFinish>(p, nullptr); }
inline void multiply_finish(const TileProduct& p, const TileFinish& f) {
  with_finish(f, [&]<class Finish>() { multiply_tiles<Finish>(p, &f); });
}

}  // namespace trainer::TRAINER_ISA
