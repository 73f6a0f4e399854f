// The products of attention, by one warp: scores and sums are C fragments whatever the element type, so that
// what is done between the products is written once. bf16 multiplies fragments; fp32 takes the same elements
// per lane by plain multiply-add.
#pragma once

#include "cuda/fragment.h"

namespace trainer::TRAINER_DEVICE_NAMESPACE {

// Rows of kWidth elements in shared memory. The gap between them puts eight consecutive rows into different
// banks.
template <class T, int kWidth>
struct SharedTile {
  static constexpr int kStride = kWidth + 16 / static_cast<int>(sizeof(T));
  SharedSpan<T> data;

  static __host__ __device__ constexpr int elements(int rows) { return rows * kStride; }
  __device__ __forceinline__ SharedTile from_row(int row) const { return {data + row * kStride}; }
};

// Where a warp of the fp32 kernels lays weights down between two products; bf16 needs no such place.
template <class T, int kRows, int kWidth>
struct WeightTile {
  static constexpr int kElements = 0;
};
template <int kRows, int kWidth>
struct WeightTile<float, kRows, kWidth> {
  static constexpr int kElements = SharedTile<float, kWidth>::elements(kRows);
};

template <int kM, int kN>
__device__ __forceinline__ void clear(FragmentC (&sums)[kM][kN]) {
  TRAINER_UNROLL
  for (int m = 0; m < kM; ++m) {
    TRAINER_UNROLL
    for (int n = 0; n < kN; ++n) sums[m][n] = {};
  }
}

// sums [16 kM, 8 kN] += left right^T, both with rows of kWidth.
template <int kM, int kN, int kWidth>
__device__ __forceinline__ void multiply_rows(FragmentC (&sums)[kM][kN], SharedTile<Bf16, kWidth> left,
                                              SharedTile<Bf16, kWidth> right) {
  constexpr int kStride = SharedTile<Bf16, kWidth>::kStride;
  TRAINER_UNROLL_BY(2)  // all of it would want more registers than there are
  for (int depth = 0; depth < kWidth; depth += 16) {
    FragmentA a[kM];
    TRAINER_UNROLL
    for (int m = 0; m < kM; ++m) load_a<false>(a[m], left.data, kStride, 16 * m, depth);
    TRAINER_UNROLL
    for (int n = 0; n < kN; n += 2) {
      FragmentB b[2];
      load_b<false>(b[0], b[1], right.data, kStride, 8 * n, depth);
      TRAINER_UNROLL
      for (int m = 0; m < kM; ++m) {
        mma(sums[m][n], a[m], b[0]);
        mma(sums[m][n + 1], a[m], b[1]);
      }
    }
  }
}

// sums [16 kM, 8 kN] += weights [16 kM, 8 kK] right, which has rows of 8 kN. `place` is the warp's own
// WeightTile.
template <int kM, int kN, int kK>
__device__ __forceinline__ void multiply_weights(FragmentC (&sums)[kM][kN],
                                                 const FragmentC (&weights)[kM][kK],
                                                 SharedTile<Bf16, 8 * kN> right, SharedSpan<Bf16>) {
  TRAINER_UNROLL
  for (int k = 0; k < kK; k += 2) {
    FragmentA a[kM];
    TRAINER_UNROLL
    for (int m = 0; m < kM; ++m) a[m] = as_operand(weights[m][k], weights[m][k + 1]);
    TRAINER_UNROLL
    for (int n = 0; n < kN; n += 2) {
      FragmentB b[2];
      load_b<true>(b[0], b[1], right.data, SharedTile<Bf16, 8 * kN>::kStride, 8 * n, 8 * k);
      TRAINER_UNROLL
      for (int m = 0; m < kM; ++m) {
        mma(sums[m][n], a[m], b[0]);
        mma(sums[m][n + 1], a[m], b[1]);
      }
    }
  }
}

__device__ __forceinline__ void add_product(float& sum, const float4& a, const float4& b) {
  sum = multiply_add(a.x, b.x, sum);
  sum = multiply_add(a.y, b.y, sum);
  sum = multiply_add(a.z, b.z, sum);
  sum = multiply_add(a.w, b.w, sum);
}

template <int kM, int kN, int kWidth>
__device__ __forceinline__ void multiply_rows(FragmentC (&sums)[kM][kN], SharedTile<float, kWidth> left,
                                              SharedTile<float, kWidth> right) {
  constexpr int kStride = SharedTile<float, kWidth>::kStride / 4;
  const SharedSpan<float4> left_row = left.from_row(fragment_row(0)).data.template as<float4>();
  const SharedSpan<float4> right_row = right.from_row(fragment_column(0)).data.template as<float4>();
  for (int depth = 0; depth < kWidth / 4; ++depth) {
    float4 a[kM][2];
    TRAINER_UNROLL
    for (int m = 0; m < kM; ++m) {
      a[m][0] = left_row[16 * m * kStride + depth];
      a[m][1] = left_row[(16 * m + 8) * kStride + depth];
    }
    TRAINER_UNROLL
    for (int n = 0; n < kN; ++n) {
      const float4 b[2] = {right_row[8 * n * kStride + depth], right_row[(8 * n + 1) * kStride + depth]};
      TRAINER_UNROLL
      for (int m = 0; m < kM; ++m) {
        TRAINER_UNROLL
        for (int value = 0; value < 4; ++value)
          add_product(sums[m][n].values[value], a[m][value / 2], b[value % 2]);
      }
    }
  }
}

template <int kM, int kN, int kK>
__device__ __forceinline__ void multiply_weights(FragmentC (&sums)[kM][kN],
                                                 const FragmentC (&weights)[kM][kK],
                                                 SharedTile<float, 8 * kN> right, SharedSpan<float> place) {
  constexpr int kStride = SharedTile<float, 8 * kK>::kStride;
  constexpr int kRightStride = SharedTile<float, 8 * kN>::kStride / 2;
  const SharedSpan<float> own = place + fragment_row(0) * kStride;
  __syncwarp();  // the product before has read the place
  TRAINER_UNROLL
  for (int m = 0; m < kM; ++m) {
    TRAINER_UNROLL
    for (int k = 0; k < kK; ++k) {
      TRAINER_UNROLL
      for (int half = 0; half < 2; ++half) {
        const SharedSpan<float> to = own + ((16 * m + 8 * half) * kStride + 8 * k + fragment_column(0));
        to.template as<float2>()[0] = {weights[m][k].values[2 * half], weights[m][k].values[2 * half + 1]};
      }
    }
  }
  __syncwarp();
  const SharedSpan<float2> right_column = right.data.template as<float2>() + fragment_column(0) / 2;
  for (int k = 0; k < 8 * kK; ++k) {
    float a[kM][2];
    TRAINER_UNROLL
    for (int m = 0; m < kM; ++m) {
      a[m][0] = own[16 * m * kStride + k];
      a[m][1] = own[(16 * m + 8) * kStride + k];
    }
    TRAINER_UNROLL
    for (int n = 0; n < kN; ++n) {
      const float2 b = right_column[k * kRightStride + 4 * n];
      TRAINER_UNROLL
      for (int m = 0; m < kM; ++m) {
        TRAINER_UNROLL
        for (int half = 0; half < 2; ++half) {
          float(&pair)[4] = sums[m][n].values;
          pair[2 * half] = multiply_add(a[m][half], b.x, pair[2 * half]);
          pair[2 * half + 1] = multiply_add(a[m][half], b.y, pair[2 * half + 1]);
        }
      }
    }
  }
}

// Two neighbours of a row in global memory, the first of an even column: as far as the row has them. `pairs`:
// both may be written at once.
__device__ __forceinline__ void store_pair(float* row, int column, int columns, bool pairs, float first,
                                           float second) {
  if (pairs) {
    if (column < columns) *reinterpret_cast<float2*>(row + column) = {first, second};
  } else {
    if (column < columns) row[column] = first;
    if (column + 1 < columns) row[column + 1] = second;
  }
}
__device__ __forceinline__ void store_pair(Bf16* row, int column, int columns, bool pairs, float first,
                                           float second) {
  if (pairs) {
    if (column < columns) *reinterpret_cast<uint32_t*>(row + column) = pack_bf16(first, second);
  } else {
    if (column < columns) row[column] = __float2bfloat16_rn(first);
    if (column + 1 < columns) row[column + 1] = __float2bfloat16_rn(second);
  }
}

}  // namespace trainer::TRAINER_DEVICE_NAMESPACE
