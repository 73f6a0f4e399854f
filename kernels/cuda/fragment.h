// The tensor core's product of the PTX ISA, mma.m16n8k16 with bf16 operands and fp32 sums.
//
// A fragment is a small matrix spread over the 32 lanes of a warp, and every function that takes one is
// called by all lanes together. With group = lane / 4 and pair = 2 * (lane % 4), a lane holds
//   A [16, 16]: pairs[0..3] = (row group, column pair), (group + 8, pair), (group, pair + 8), (group + 8,
//   pair + 8),
//               each with the column beside it in the upper half;
//   B [16, 8]:  pairs[0..1] = (row pair, column group), (pair + 8, group), each with the row below in the
//   upper half; C [16, 8]:  values[0..3] = (row group, columns pair and pair + 1), (row group + 8, the same
//   columns).
// So two neighbouring C, rounded to bf16, are an A: what a product gave is an operand of the next one without
// leaving its registers.
#pragma once

#include "cuda/device.h"

namespace trainer::TRAINER_DEVICE_NAMESPACE {

struct FragmentA {
  uint32_t pairs[4];
};
struct FragmentB {
  uint32_t pairs[2];
};
struct FragmentC {
  float values[4];
};

// Blocks of threads have one dimension in all kernels that use fragments.
__device__ __forceinline__ int lane_index() { return static_cast<int>(threadIdx.x) % kWarpThreads; }
__device__ __forceinline__ int warp_index() { return static_cast<int>(threadIdx.x) / kWarpThreads; }

// Where in C a value of this lane lies.
__device__ __forceinline__ int fragment_row(int value) { return lane_index() / 4 + value / 2 * 8; }
__device__ __forceinline__ int fragment_column(int value) { return lane_index() % 4 * 2 + value % 2; }

// a b + c, rounded once on a device. On the host, where that would be a call for each, twice: the two have
// different bits.
__device__ __forceinline__ float multiply_add(float a, float b, float c) {
#if defined(TRAINER_CUDA)
  return __fmaf_rn(a, b, c);
#else
  return a * b + c;
#endif
}

// Two numbers rounded to bf16, the first in the lower half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  uint32_t bits;
  memcpy(&bits, &both, sizeof bits);
  return bits;
}

// Four 8 x 8 matrices from shared memory (ldmatrix): `row` of lanes 8 i to 8 i + 7 are the rows of matrix i,
// each 16 bytes at a multiple of 16. pairs[i] becomes the elements (lane / 4, pair) and (lane / 4, pair + 1)
// of matrix i, or of its transpose.
template <bool kTransposed>
__device__ __forceinline__ void load_matrices(uint32_t (&pairs)[4], SharedSpan<Bf16> row) {
#if defined(TRAINER_CUDA)
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row.data()));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
                 : "r"(address));
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
                 : "r"(address));
  }
#else
  row.as<uint4>();  // refuses a place that is not aligned
  const WarpValues<SharedSpan<Bf16> > rows = warp_exchange(~0u, row);
  const int group = lane_index() / 4, pair = lane_index() % 4 * 2;
  for (int i = 0; i < 4; ++i) {
    const Bf16 low = kTransposed ? rows.of(8 * i + pair)[group] : rows.of(8 * i + group)[pair];
    const Bf16 high = kTransposed ? rows.of(8 * i + pair + 1)[group] : rows.of(8 * i + group)[pair + 1];
    pairs[i] = uint32_t{high.bits} << 16 | low.bits;
  }
#endif
}

// sums += a b.
__device__ __forceinline__ void mma(FragmentC& sums, const FragmentA& a, const FragmentB& b) {
#if defined(TRAINER_CUDA)
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums.values[0]), "+f"(sums.values[1]), "+f"(sums.values[2]), "+f"(sums.values[3])
      : "r"(a.pairs[0]), "r"(a.pairs[1]), "r"(a.pairs[2]), "r"(a.pairs[3]), "r"(b.pairs[0]), "r"(b.pairs[1]));
#else
  struct Operands {
    FragmentA a;
    FragmentB b;
  };
  const WarpValues<Operands> lanes = warp_exchange(~0u, Operands{a, b});
  const auto low = [](uint32_t pair) { return __uint_as_float(pair << 16); };
  const auto high = [](uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000u); };
  const int group = lane_index() / 4, column = lane_index() % 4 * 2;
  for (int half = 0; half < 2; ++half) {    // of the rows of b
    for (int pair = 0; pair < 4; ++pair) {  // rows 8 half + 2 pair and the next
      const FragmentA left = lanes.of(4 * group + pair).a;
      const uint32_t upper = left.pairs[2 * half], lower = left.pairs[2 * half + 1];
      for (int i = 0; i < 2; ++i) {
        const uint32_t right = lanes.of(4 * (column + i) + pair).b.pairs[half];
        sums.values[i] += low(upper) * low(right) + high(upper) * high(right);
        sums.values[2 + i] += low(lower) * low(right) + high(lower) * high(right);
      }
    }
  }
#endif
}

// The [16, 16] at (row, depth) of a matrix in shared memory whose rows are `stride` elements apart;
// `kTransposed`: memory holds its transpose, so (row, depth) is at depth * stride + row.
template <bool kTransposed>
__device__ __forceinline__ void load_a(FragmentA& a, SharedSpan<Bf16> from, int stride, int row, int depth) {
  const int lane = lane_index();
  if constexpr (kTransposed) {
    load_matrices<true>(a.pairs,
                        from + ((depth + lane / 16 * 8 + lane % 8) * stride + row + lane / 8 % 2 * 8));
  } else {
    load_matrices<false>(a.pairs, from + ((row + lane % 16) * stride + depth + lane / 16 * 8));
  }
}

// Of a matrix b^T [columns, depth] the parts at (column, depth) and (column + 8, depth), as B [16, 8] each;
// `kTransposed`: memory holds b itself, so the first begins at depth * stride + column.
template <bool kTransposed>
__device__ __forceinline__ void load_b(FragmentB& first, FragmentB& second, SharedSpan<Bf16> from, int stride,
                                       int column, int depth) {
  const int lane = lane_index();
  uint32_t pairs[4];
  if constexpr (kTransposed) {
    load_matrices<true>(pairs, from + ((depth + lane % 16) * stride + column + lane / 16 * 8));
  } else {
    load_matrices<false>(pairs,
                         from + ((column + lane / 16 * 8 + lane % 8) * stride + depth + lane / 8 % 2 * 8));
  }
  first = {pairs[0], pairs[1]};
  second = {pairs[2], pairs[3]};
}

// Two neighbouring C [16, 8] as one A [16, 16], rounded to bf16.
__device__ __forceinline__ FragmentA as_operand(const FragmentC& left, const FragmentC& right) {
  return {pack_bf16(left.values[0], left.values[1]), pack_bf16(left.values[2], left.values[3]),
          pack_bf16(right.values[0], right.values[1]), pack_bf16(right.values[2], right.values[3])};
}

}  // namespace trainer::TRAINER_DEVICE_NAMESPACE
