// The part of CUDA that kernels of this project use, for the host compiler. Included through cuda/device.h.
//
// Not here: static __shared__ arrays (shared memory comes from SharedArena), lockstep of a warp (there is
// none on current devices either), textures, clusters, cooperative groups.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "simt/machine.h"
#include "simt/shared.h"
#include "simt/types.h"

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

namespace trainer::simt {

// A kernel runs on its stream's machine, to its end. Null: a machine of the calling host thread.
using Stream = Machine*;
Machine& machine_of(Stream stream);

// kernel(arguments...) by every thread. Errors: Machine::run.
template <class Kernel, class... Arguments>
void launch(Kernel kernel, std::type_identity_t<Grid> grid, dim3 block, size_t shared_bytes, Stream stream,
            Arguments... arguments) {
  auto body = [&] { kernel(arguments...); };
  machine_of(stream).run(
      grid, block, shared_bytes, [](void* call) { (*static_cast<decltype(body)*>(call))(); }, &body);
}

using std::max;
using std::min;

inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
template <class T>
T __ldg(const T* from) {
  return *from;
}

using Place = std::source_location;

inline void __syncthreads(Place where = Place::current()) { current_machine->barrier(where); }
inline void __syncwarp(unsigned mask = ~0u, Place where = Place::current()) {
  current_machine->meet(mask, nullptr, 0, where);
}

// What each lane of `mask` brought, as T; lasts until the thread waits again.
template <class T>
class WarpValues {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= Machine::kMostMessage);

 public:
  WarpValues(unsigned mask, const T& mine, Place where)
      : mask_(mask), where_(where), messages_(current_machine->meet(mask, &mine, sizeof(T), where)) {}
  T of(int lane) const {
    if ((mask_ >> lane & 1) == 0) {
      run_error("{}: takes the value of lane {}, which is not in the mask {:#x}", where_.line(), lane, mask_);
    }
    T value;
    std::memcpy(&value, messages_ + static_cast<size_t>(lane) * Machine::kMostMessage, sizeof(T));
    return value;
  }

 private:
  unsigned mask_;
  Place where_;
  const std::byte* messages_;
};
template <class T>
WarpValues<T> warp_exchange(unsigned mask, const T& mine, Place where = Place::current()) {
  return {mask, mine, where};
}

// Lanes exchange within parts of `width` lanes, a power of two.
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = kWarpThreads, Place where = Place::current()) {
  const int lane = current_machine->lane();
  return WarpValues<T>(mask, value, where).of((lane & ~(width - 1)) + (source & (width - 1)));
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = kWarpThreads,
                  Place where = Place::current()) {
  const int lane = current_machine->lane(), source = lane ^ bits;
  const WarpValues<T> values(mask, value, where);
  return values.of(source <= (lane | (width - 1)) ? source : lane);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = kWarpThreads,
                   Place where = Place::current()) {
  const int lane = current_machine->lane(), source = lane + static_cast<int>(distance);
  const WarpValues<T> values(mask, value, where);
  return values.of(source <= (lane | (width - 1)) ? source : lane);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = kWarpThreads,
                 Place where = Place::current()) {
  const int lane = current_machine->lane(), source = lane - static_cast<int>(distance);
  const WarpValues<T> values(mask, value, where);
  return values.of(source >= (lane & ~(width - 1)) ? source : lane);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, Place where = Place::current()) {
  const WarpValues<int> values(mask, predicate, where);
  unsigned result = 0;
  for (unsigned rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    if (values.of(lane) != 0) result |= 1u << lane;
  }
  return result;
}
inline int __any_sync(unsigned mask, int predicate, Place where = Place::current()) {
  return __ballot_sync(mask, predicate, where) != 0;
}
inline int __all_sync(unsigned mask, int predicate, Place where = Place::current()) {
  return __ballot_sync(mask, predicate, where) == mask;
}

// Fibers give way at barriers only, so plain reads and writes are atomic.
template <class T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  const T before = *address;
  *address = before + value;
  return before;
}
template <class T>
T atomicMin(T* address, std::type_identity_t<T> value) {
  const T before = *address;
  *address = min(before, value);
  return before;
}
template <class T>
T atomicMax(T* address, std::type_identity_t<T> value) {
  const T before = *address;
  *address = max(before, value);
  return before;
}

}  // namespace trainer::simt
