// What the product kernels of both element types share: c[m, n] = a b, where a is [m, k] or in memory its
// transpose, b is [k, n] in memory or its transpose.
#pragma once

#include "cuda/copy.h"
#include "cuda/device.h"
#include "cuda/fragment.h"

namespace trainer::TRAINER_DEVICE_NAMESPACE {

// Which of the operands memory holds with k along its rows: NT both, NN a, TN none.
enum class GemmForm { kNT, kNN, kTN };

// A matrix as it lies in memory, dense.
template <class T>
struct GemmOperand {
  const T* data;
  int rows, columns;
  bool vectors;  // as in GlobalTile

  __device__ __forceinline__ GlobalTile<T> tile(int row, int column) const {
    return {data + static_cast<int64_t>(row) * columns + column, columns, rows - row, columns - column,
            vectors};
  }
};

// Takes the sums of c [rows, columns].
struct GemmResult {
  float* as_float;  // one of the two is null
  Bf16* as_bf16;
  int rows, columns;
  bool pairs;  // even elements may be written together with the one behind them
  bool accumulate;
  const float* bias_float;  // [columns]; both may be null
  const Bf16* bias_bf16;

  // The elements (row, column) and (row, column + 1), as far as c has them; column is even.
  __device__ __forceinline__ void store_pair(int row, int column, float first, float second) const {
    if (row >= rows || column >= columns) return;
    const int64_t at = static_cast<int64_t>(row) * columns + column;
    if (!pairs) {
      store(at, column, first);
      if (column + 1 < columns) store(at + 1, column + 1, second);
    } else if (as_float) {
      float2* to = reinterpret_cast<float2*>(as_float + at);
      float2 sum = {first + bias(column), second + bias(column + 1)};
      if (accumulate) {
        const float2 before = *to;
        sum = {before.x + sum.x, before.y + sum.y};
      }
      *to = sum;
    } else {
      first += bias(column);
      second += bias(column + 1);
      if (accumulate) {
        first += __bfloat162float(as_bf16[at]);
        second += __bfloat162float(as_bf16[at + 1]);
      }
      *reinterpret_cast<uint32_t*>(as_bf16 + at) = pack_bf16(first, second);
    }
  }

 private:
  __device__ __forceinline__ float bias(int column) const {
    return bias_float ? bias_float[column] : bias_bf16 ? __bfloat162float(bias_bf16[column]) : 0.0f;
  }
  __device__ __forceinline__ void store(int64_t at, int column, float sum) const {
    sum += bias(column);
    if (as_float) {
      as_float[at] = accumulate ? as_float[at] + sum : sum;
    } else {
      as_bf16[at] = __float2bfloat16_rn(accumulate ? __bfloat162float(as_bf16[at]) + sum : sum);
    }
  }
};

template <class T>
struct GemmArguments {
  GemmOperand<T> a, b;
  int m, n, k;
  GemmResult result;
};

// Square tiles of c, and which of them a block of threads makes: blocks that run at one time lie in a few
// rows of tiles, so that they find each other's operands in the cache.
constexpr int64_t tile_count(int m, int n, int tile) {
  return static_cast<int64_t>((m + tile - 1) / tile) * ((n + tile - 1) / tile);
}

struct TilePlace {
  int row, column;  // of c
};

__device__ __forceinline__ TilePlace tile_place(int m, int n, int tile) {
  constexpr int kRowsTogether = 8;
  const int tile_rows = (m + tile - 1) / tile, tile_columns = (n + tile - 1) / tile;
  const int block = static_cast<int>(blockIdx.x);
  const int first = block / (kRowsTogether * tile_columns) * kRowsTogether;
  const int rows = tile_rows - first < kRowsTogether ? tile_rows - first : kRowsTogether;
  const int inside = block % (kRowsTogether * tile_columns);
  return {(first + inside % rows) * tile, inside / rows * tile};
}

// With fewer large tiles than this, much of a device would be idle: then small ones. Elements get the same
// bits in both.
inline constexpr int64_t kEnoughTiles = 96;

void run_gemm(GemmForm form, const GemmArguments<float>& g, Stream stream);
void run_gemm(GemmForm form, const GemmArguments<Bf16>& g, Stream stream);

}  // namespace trainer::TRAINER_DEVICE_NAMESPACE
