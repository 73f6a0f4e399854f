// What simt/simt.h adds to CUDA's names, for nvcc.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>
#include <utility>

#include "cuda/backend.h"

namespace trainer::cuda {

inline constexpr int kWarpThreads = 32;

template <class T>
class SharedSpan {
 public:
  SharedSpan() = default;
  __device__ __forceinline__ explicit SharedSpan(T* data) : data_(data) {}
  __device__ __forceinline__ T& operator[](int i) const { return data_[i]; }
  __device__ __forceinline__ SharedSpan operator+(int first) const { return SharedSpan(data_ + first); }
  template <class U>
  __device__ __forceinline__ SharedSpan<U> as() const {
    return SharedSpan<U>(reinterpret_cast<U*>(data_));
  }
  // Not in the SIMT layer: for instructions that take addresses.
  __device__ __forceinline__ T* data() const { return data_; }

 private:
  T* data_ = nullptr;
};

class SharedArena {
 public:
  template <class T>
  __device__ __forceinline__ SharedSpan<T> take(int count) {
    extern __shared__ __align__(16) unsigned char trainer_shared_memory[];
    T* const data = reinterpret_cast<T*>(trainer_shared_memory + next_);
    next_ += (count * static_cast<int>(sizeof(T)) + 15) / 16 * 16;
    return SharedSpan<T>(data);
  }

 private:
  int next_ = 0;
};

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), std::type_identity_t<dim3> grid, dim3 block, size_t shared_bytes,
            Stream stream, Arguments... arguments) {
  // More than this must be asked for.
  constexpr size_t kPlainSharedBytes = 48 << 10;
  if (shared_bytes > kPlainSharedBytes) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_bytes)),
          "shared memory of a kernel");
  }
  kernel<<<grid, block, shared_bytes, stream>>>(static_cast<Parameters>(arguments)...);
  check(cudaGetLastError(), "launch of a kernel");
}

}  // namespace trainer::cuda
