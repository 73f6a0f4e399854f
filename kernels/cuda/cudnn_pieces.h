// How cuDNN's attention is cut into calls, and the workspace that it gets.
#pragma once

#if defined(TRAINER_CUDA)

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/kernel_set.h"

namespace trainer::cuda {

// Of the slopes of all scores of one head: cuDNN pads sequences to whole tiles.
inline size_t slope_bytes(int64_t length) {
  constexpr int64_t kTile = 128;
  const int64_t padded = (length + kTile - 1) / kTile * kTile;
  return static_cast<size_t>(padded * padded) * size_of(DType::kBF16);
}

// The largest divisor of `count` that is at most `most`; 0 where that is 0.
inline int64_t largest_divisor(int64_t count, int64_t most) {
  int64_t divisor = std::min(count, most);
  while (divisor > 0 && count % divisor != 0) --divisor;
  return divisor;
}

// Batch rows and heads of keys of one call of the backward pass; each divides the whole. No rows: even one
// head's slopes are too much.
struct BackwardPiece {
  int64_t batch = 0, kv_heads = 0;
};
inline BackwardPiece backward_piece(int64_t batch, int64_t length, int64_t heads, int64_t kv_heads,
                                    size_t most_bytes) {
  const size_t of_head = slope_bytes(length) * static_cast<size_t>(heads / kv_heads);
  const auto fit = static_cast<int64_t>(most_bytes / of_head);
  if (fit >= kv_heads) return {largest_divisor(batch, fit / kv_heads), kv_heads};
  return {std::min<int64_t>(fit, 1), largest_divisor(kv_heads, fit)};
}

}  // namespace trainer::cuda

#endif
