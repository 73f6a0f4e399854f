// Products of bf16 pairs by the tile registers of AMX: 32 x 32 of C at a time, in four registers. The
// processor multiplies 16 rows of 16 slots with 16 slots of 16 columns at once.
//
// Six of the eight registers are used, though a part of B is then loaded twice: two threads of a core share
// the registers behind them, and when both fill theirs, a load waits for every product that still reads the
// old contents (measured: 1.6 times slower with eight).
//
// A packed tile of A holds, for every 16 slots of k, its 32 rows one after the other.
#pragma once

#include "cpu/tile_packing.h"

namespace trainer::TRAINER_ISA {

// Rows, columns and slots of one register.
constexpr int64_t kRegister = 16;
constexpr int64_t kTileRows = 2 * kRegister, kTileWidth = 2 * kRegister, kPanel = 2 * kRegister;
constexpr int64_t kSlotMultiple = kRegister;
constexpr bool kEven = false, kAnyRows = true;
constexpr int64_t kTaskBytes = 1 << 20;
// Slots for which a panel of B stays in the first-level cache while the tiles of A pass by.
constexpr int64_t kNearSlots = 256;

struct alignas(64) RegisterShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16};
};
constexpr RegisterShapes kRegisterShapes;

inline void pack_a(const TilePacking& p) {
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
        for (int64_t r = 0; r < rows && r < kRegister; ++r)
          block[r] = load_slots(from + (row + r) * p.row_stride + 2 * slot, p.k - 2 * slot);
      }
      float* to = p.to + slot * kTileWidth + row * kRegister;
      for (int64_t r = 0; r < kRegister; ++r) store(to + r * kRegister, block[r], All{});
    }
  }
}

inline void pack_b(const TilePacking& p) { pack_slots(p, kSlotMultiple); }

// Where the slots of a tile's rows lie.
struct TileRows {
  const float* a;
  int64_t row_bytes, lower;  // from a row to the next; slots from the upper 16 rows to the lower
  int64_t step;              // slots from 16 slots to the next
};

// C[32, 32] (+)= A B. Registers 0 to 3 are C's, 4 is A's, 5 is B's.
template <bool kLower>
inline void multiply_block(float* c, int64_t c_stride, bool add, const TileRows& a, const float* b,
                           int64_t b_stride, int64_t k, const char* next, int64_t next_step) {
  // Compilers do not know that tile loads read memory: what was stored before must be stored now.
  asm volatile("" ::: "memory");
  const int64_t c_bytes = c_stride * 4, b_bytes = b_stride * 4;
  float* const low = c + kRegister * c_stride;
  if (add) {
    _tile_loadd(0, c, c_bytes);
    _tile_loadd(1, c + kRegister, c_bytes);
    if (kLower) {
      _tile_loadd(2, low, c_bytes);
      _tile_loadd(3, low + kRegister, c_bytes);
    }
  } else {
    _tile_zero(0);
    _tile_zero(1);
    if (kLower) {
      _tile_zero(2);
      _tile_zero(3);
    }
  }
  const float* rows = a.a;
  for (int64_t kk = 0; kk < k; kk += kRegister) {
    _tile_loadd(4, rows, a.row_bytes);
    _tile_loadd(5, b, b_bytes);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(5, b + kRegister, b_bytes);
    _tile_dpbf16ps(1, 4, 5);
    if (kLower) {
      _tile_loadd(4, rows + a.lower, a.row_bytes);
      _tile_dpbf16ps(3, 4, 5);
      _tile_loadd(5, b, b_bytes);
      _tile_dpbf16ps(2, 4, 5);
    }
    for (int64_t line = 0; line < next_step; line += 64) __builtin_prefetch(next + line, 0, 2);
    next += next_step;
    rows += a.step;
    b += kRegister * b_stride;
  }
  _tile_stored(0, c, c_bytes);
  _tile_stored(1, c + kRegister, c_bytes);
  if (kLower) {
    _tile_stored(2, low, c_bytes);
    _tile_stored(3, low + kRegister, c_bytes);
  }
}

inline void shape_registers() { _tile_loadconfig(&kRegisterShapes); }
inline void release_registers() { _tile_release(); }
constexpr auto kBegin = shape_registers, kEnd = release_registers;

inline void multiply(const TileProduct& p) {
  // Each tile asks for its share of the next panel, a little with every 16 slots.
  const char* next = reinterpret_cast<const char*>(p.next_b);
  const int64_t next_step =
      p.next_b ? (kRegister * kPanel * 4 / (p.tile_end - p.tile_begin) + 63) / 64 * 64 : 0;
  for (int64_t begin = 0; begin < p.k; begin += kNearSlots) {
    const int64_t k = p.k - begin < kNearSlots ? p.k - begin : kNearSlots;
    const float* b = p.b + begin * p.b_stride;
    for (int64_t t = p.tile_begin; t < p.tile_end; ++t) {
      const bool packed = p.form == TileForm::kPacked;
      const TileRows a = packed ? TileRows{p.a + t * p.a_stride + begin * kTileWidth, kRegister * 4,
                                           kRegister * kRegister, kRegister * kTileWidth}
                                : TileRows{p.a + t * kTileRows * p.a_stride + begin, p.a_stride * 4,
                                           kRegister * p.a_stride, kRegister};
      float* const c = p.c + t * kTileRows * p.c_stride;
      const int64_t rows = p.m - t * kTileRows;
      const bool add = p.add || begin > 0;
      if (rows >= kTileRows) {
        multiply_block<true>(c, p.c_stride, add, a, b, p.b_stride, k, next, next_step);
      } else {
        // What a register stores beyond the last row is not C's.
        alignas(64) float block[kTileRows * kPanel] = {};
        for (int64_t r = 0; add && r < rows; ++r)
          std::memcpy(block + r * kPanel, c + r * p.c_stride, kPanel * sizeof(float));
        if (rows > kRegister) {
          multiply_block<true>(block, kPanel, add, a, b, p.b_stride, k, next, next_step);
        } else {
          multiply_block<false>(block, kPanel, add, a, b, p.b_stride, k, next, next_step);
        }
        for (int64_t r = 0; r < rows; ++r)
          std::memcpy(c + r * p.c_stride, block + r * kPanel, kPanel * sizeof(float));
      }
      next += next_step * (k / kRegister);
    }
  }
}

}  // namespace trainer::TRAINER_ISA
