// Runs of consecutive elements as floats in registers, read and written 16 bytes at a time where they lie for
// it.
#pragma once

#include <initializer_list>

#include "cuda/device.h"

namespace trainer::TRAINER_DEVICE_NAMESPACE {

inline constexpr int kVectorBytes = 16;

// What a thread works on at once: as many elements as bf16 has in 16 bytes. The same for fp32 and where
// vectors do not fit, so that which thread sums what depends on the shape alone.
inline constexpr int kRun = 8;

template <class T>
struct alignas(kVectorBytes) Vector {
  static constexpr int kElements = kVectorBytes / static_cast<int>(sizeof(T));
  T element[kElements];
};

// values = the first min(count, kRun) elements from `from` on, then zeros. `vectors`: `from` is aligned to 16
// bytes.
template <class T>
__device__ __forceinline__ void load_run(float (&values)[kRun], const T* from, int64_t count, bool vectors) {
  if (vectors && count >= kRun) {
    TRAINER_UNROLL
    for (int first = 0; first < kRun; first += Vector<T>::kElements) {
      const Vector<T> vector = *reinterpret_cast<const Vector<T>*>(from + first);
      TRAINER_UNROLL
      for (int i = 0; i < Vector<T>::kElements; ++i) values[first + i] = to_float(vector.element[i]);
    }
  } else {
    TRAINER_UNROLL
    for (int i = 0; i < kRun; ++i) values[i] = i < count ? to_float(from[i]) : 0.0f;
  }
}

// The first min(count, kRun) values to `to`, rounded.
template <class T>
__device__ __forceinline__ void store_run(T* to, const float (&values)[kRun], int64_t count, bool vectors) {
  if (vectors && count >= kRun) {
    TRAINER_UNROLL
    for (int first = 0; first < kRun; first += Vector<T>::kElements) {
      Vector<T> vector;
      TRAINER_UNROLL
      for (int i = 0; i < Vector<T>::kElements; ++i) vector.element[i] = from_float<T>(values[first + i]);
      *reinterpret_cast<Vector<T>*>(to + first) = vector;
    }
  } else {
    TRAINER_UNROLL
    for (int i = 0; i < kRun; ++i) {
      if (i < count) to[i] = from_float<T>(values[i]);
    }
  }
}

// An array whose rows are `stride` elements apart.
struct Rows {
  ConstRef data;
  int64_t stride = 0;
};
// Whether every row of every array begins at a multiple of 16 bytes. Arrays that are not there do not count.
inline bool fit_vectors(std::initializer_list<Rows> arrays) {
  for (const Rows& rows : arrays) {
    if (!rows.data) continue;
    const auto bytes = static_cast<uint64_t>(rows.stride) * size_of(rows.data.dtype);
    if (reinterpret_cast<uintptr_t>(rows.data.data) % kVectorBytes != 0 || bytes % kVectorBytes != 0)
      return false;
  }
  return true;
}

template <class T>
const T* elements(ConstRef array) {
  return static_cast<const T*>(array.data);
}
template <class T>
T* elements(Ref array) {
  return static_cast<T*>(array.data);
}

// One thread for each of `count` things.
inline constexpr int kPlainBlock = 256;
template <class Kernel, class... Arguments>
void launch_over(Kernel kernel, int64_t count, Stream stream, Arguments... arguments) {
  if (count > 0) launch(kernel, divide_up(count, kPlainBlock), kPlainBlock, 0, stream, arguments...);
}
__device__ __forceinline__ int64_t thread_of_grid() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

}  // namespace trainer::TRAINER_DEVICE_NAMESPACE
