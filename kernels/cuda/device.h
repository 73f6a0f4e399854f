// The one include of a kernel source: CUDA under nvcc, the SIMT layer under a host compiler, and what both
// share.
//
// Kernels allocate nothing and take shared memory from a SharedArena. Their results have the same bits in
// every order of blocks and threads, so there are no atomic sums of floats.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/backend.h"
#include "ops/tensor.h"
#if defined(__CUDACC__)
#include "cuda/device_cuda.h"
#define TRAINER_PRAGMA(text) _Pragma(#text)
#define TRAINER_UNROLL TRAINER_PRAGMA(unroll)
#define TRAINER_UNROLL_BY(times) TRAINER_PRAGMA(unroll times)
#else
#define TRAINER_UNROLL
#define TRAINER_UNROLL_BY(times)
#endif

namespace trainer::TRAINER_DEVICE_NAMESPACE {

using Bf16 = __nv_bfloat16;

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(Bf16 value) { return __bfloat162float(value); }
template <class T>
__device__ __forceinline__ T from_float(float value);
template <>
__device__ __forceinline__ float from_float<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ Bf16 from_float<Bf16>(float value) {
  return __float2bfloat16_rn(value);
}

// Bytes that SharedArena::take<T>(count) takes.
template <class T>
constexpr size_t shared_bytes(int64_t count) {
  return (static_cast<size_t>(count) * sizeof(T) + 15) / 16 * 16;
}

__host__ __device__ constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Calls f with a value of the element type: f(float()) or f(Bf16()).
template <class F>
void with_element(DType dtype, F&& f) {
  if (dtype == DType::kF32) {
    f(float());
  } else {
    f(Bf16());
  }
}

// Sums over the warp, in a fixed order; every lane gets the result. All 32 lanes take part.
template <class T>
__device__ __forceinline__ T warp_sum(T value) {
  TRAINER_UNROLL
  for (int bits = kWarpThreads / 2; bits > 0; bits /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, bits);
  return value;
}
__device__ __forceinline__ float warp_max(float value) {
  TRAINER_UNROLL
  for (int bits = kWarpThreads / 2; bits > 0; bits /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, bits));
  }
  return value;
}

}  // namespace trainer::TRAINER_DEVICE_NAMESPACE
