// Matrix products at an instruction level: which tiles multiply which operands.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <span>

#include "cpu/blocked_product.h"

namespace trainer {

struct Products {
  const TileTable& tiles;
  const TileTable* const bf16_tiles;  // where the processor multiplies bf16 itself; else null
  const int threads;

  Products(int thread_count, Isa isa)
      : tiles(tile_table(isa)), bf16_tiles(bf16_tile_table(isa)), threads(thread_count) {}

  // The tiles that multiply these operands.
  const TileTable& tiles_for(std::initializer_list<ConstRef> operands) const {
    const bool narrow = std::all_of(operands.begin(), operands.end(),
                                    [](const ConstRef& x) { return x.dtype == DType::kBF16; });
    return narrow && bf16_tiles ? *bf16_tiles : tiles;
  }
  // Bytes of workspace for any product within m x n x k.
  size_t bytes(int64_t m, int64_t n, int64_t k) const {
    const size_t any = blocked_product_bytes(tiles, threads, m, n, k);
    return bf16_tiles ? std::max(any, blocked_product_bytes(*bf16_tiles, threads, m, n, k)) : any;
  }
  void run(const MatrixProduct& p, std::span<std::byte> workspace) const {
    blocked_product(tiles_for({p.a, p.b}), threads, p, workspace);
  }
};

}  // namespace trainer
