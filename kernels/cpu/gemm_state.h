// The matrix products of the host backend: which of the two ways computes a product.
#pragma once

#include <algorithm>
#include <optional>
#include <span>

#include "cpu/blocked_product.h"
#include "cpu/host_kernels.h"
#include "cpu/native_product.h"

namespace trainer {

struct HostKernels::GemmState {
  const TileTable& tiles;
  const int threads;
  std::optional<NativeProduct> native;  // where the processor multiplies bf16 itself

  GemmState(int thread_count, Isa isa) : tiles(tile_table(isa)), threads(thread_count) {
    if (isa == Isa::kAvx512 && NativeProduct::available()) native.emplace(threads);
  }

  // Bytes of workspace for any product within m x n x k.
  size_t bytes(int64_t m, int64_t n, int64_t k) const {
    return std::max(blocked_product_bytes(tiles, threads, m, n, k), native ? native->workspace_bytes() : 0);
  }
  void run(const MatrixProduct& p, std::span<std::byte> workspace) {
    const bool narrow = p.a.dtype == DType::kBF16 && p.b.dtype == DType::kBF16;
    if (narrow && native && native->run(p, workspace)) return;
    blocked_product(tiles, threads, p, workspace);
  }
};

}  // namespace trainer
