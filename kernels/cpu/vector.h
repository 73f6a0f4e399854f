// A vector of floats of the instruction level being compiled, and the loops over it. Included only by a
// translation unit that has chosen its level (vector_plain.cc, vector_avx2.cc, vector_avx512.cc and their
// like): that unit defines TRAINER_ISA (the namespace that keeps the levels' functions apart) and
// TRAINER_VECTOR_WIDTH (floats), TRAINER_BF16 if the level has bf16 instructions, and includes the standard
// headers before it raises the target, so that no function shared with other units is compiled for a
// processor that may not be there.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "ops/tensor.h"

namespace trainer::TRAINER_ISA {

constexpr int kWidth = TRAINER_VECTOR_WIDTH;
typedef float Floats __attribute__((vector_size(kWidth * 4)));
typedef int32_t Integers __attribute__((vector_size(kWidth * 4)));
typedef uint32_t Words __attribute__((vector_size(kWidth * 4)));
typedef uint16_t HalfWords __attribute__((vector_size(kWidth * 2)));

// How many lanes a load or store touches: all of them, or the first `count`.
struct All {};
struct First {
  int64_t count;
};

inline Floats broadcast(float value) { return Floats{} + value; }
inline Floats as_floats(Words bits) { return reinterpret_cast<Floats>(bits); }
inline Words as_words(Floats values) { return reinterpret_cast<Words>(values); }

// a x b + c, in one rounding where the level has it.
inline Floats multiply_add(Floats a, Floats b, Floats c) {
#if TRAINER_VECTOR_WIDTH == 16
  return _mm512_fmadd_ps(a, b, c);
#elif TRAINER_VECTOR_WIDTH == 8
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

#if TRAINER_VECTOR_WIDTH == 16
// The same; the instruction itself reads `a` from memory.
inline Floats multiply_add_from(const float* a, Floats b, Floats c) {
  asm("vfmadd231ps %1%{1to16%}, %2, %0" : "+v"(c) : "m"(*a), "v"(b));
  return c;
}
#endif

inline Floats square_root(Floats x) {
#if TRAINER_VECTOR_WIDTH == 16
  return _mm512_sqrt_ps(x);
#elif TRAINER_VECTOR_WIDTH == 8
  return _mm256_sqrt_ps(x);
#else
  for (int lane = 0; lane < kWidth; ++lane) x[lane] = __builtin_sqrtf(x[lane]);
  return x;
#endif
}

// Those of <algorithm> may be shared with code for processors that lack this level's instructions.
constexpr int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
constexpr int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

// NaN in x stays: of a NaN and a number the instructions take the second operand.
inline Floats at_least(Floats x, float bound) {
#if TRAINER_VECTOR_WIDTH == 16
  return _mm512_max_ps(broadcast(bound), x);
#elif TRAINER_VECTOR_WIDTH == 8
  return _mm256_max_ps(broadcast(bound), x);
#else
  return x < bound ? broadcast(bound) : x;
#endif
}
inline Floats at_most(Floats x, float bound) {
#if TRAINER_VECTOR_WIDTH == 16
  return _mm512_min_ps(broadcast(bound), x);
#elif TRAINER_VECTOR_WIDTH == 8
  return _mm256_min_ps(broadcast(bound), x);
#else
  return x > bound ? broadcast(bound) : x;
#endif
}
inline Floats absolute(Floats x) { return as_floats(as_words(x) & 0x7FFFFFFFu); }

// The sum of the lanes, by halves.
inline float sum_lanes(Floats x) {
#if TRAINER_VECTOR_WIDTH == 16
  return _mm512_reduce_add_ps(x);
#else
  float lanes[kWidth];
  std::memcpy(lanes, &x, sizeof(x));
  for (int half = kWidth / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
#endif
}

// fp32 is `float`, bf16 is its 16 bits.
inline Floats widen(HalfWords bits) {
#if TRAINER_VECTOR_WIDTH == 16
  const Words words = reinterpret_cast<Words>(_mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(bits)));
#elif TRAINER_VECTOR_WIDTH == 8
  const Words words = reinterpret_cast<Words>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(bits)));
#else
  const Words words = __builtin_convertvector(bits, Words);
#endif
  return as_floats(words << 16);
}

// Round to nearest, ties to even; NaN stays NaN.
inline HalfWords narrow_exactly(Floats values) {
  const Words bits = as_words(values);
  const Words rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const Words quiet = (bits >> 16) | 0x40u;
  const Words result = values == values ? rounded : quiet;
#if TRAINER_VECTOR_WIDTH == 16
  return reinterpret_cast<HalfWords>(_mm512_cvtepi32_epi16(reinterpret_cast<__m512i>(result)));
#elif TRAINER_VECTOR_WIDTH == 8
  const __m256i words = reinterpret_cast<__m256i>(result);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(words, words), 0x08);
  return reinterpret_cast<HalfWords>(_mm256_castsi256_si128(packed));
#else
  return __builtin_convertvector(result, HalfWords);
#endif
}

// The same, but bf16 instructions, where the level has them, make 0 of what is denormal.
inline HalfWords narrow(Floats values) {
#if TRAINER_BF16
  return reinterpret_cast<HalfWords>(_mm512_cvtneps_pbh(values));
#else
  return narrow_exactly(values);
#endif
}

template <class V, class T>
inline V load_raw(const T* from, All) {
  V v;
  std::memcpy(&v, from, sizeof(V));
  return v;
}
template <class V, class T>
inline V load_raw(const T* from, First lanes) {
  V v{};
  for (int64_t lane = 0; lane < lanes.count; ++lane) v[lane] = from[lane];
  return v;
}
template <class V, class T>
inline void store_raw(T* to, V v, All) {
  std::memcpy(to, &v, sizeof(V));
}
template <class V, class T>
inline void store_raw(T* to, V v, First lanes) {
  for (int64_t lane = 0; lane < lanes.count; ++lane) to[lane] = v[lane];
}

// Lanes beyond the first `count` read as 0.
template <class Lanes>
inline Floats load(const float* from, Lanes lanes) {
  return load_raw<Floats>(from, lanes);
}
template <class Lanes>
inline Floats load(const uint16_t* from, Lanes lanes) {
  return widen(load_raw<HalfWords>(from, lanes));
}
// The same with `other` in the lanes that are not read.
template <class T>
inline Floats load_or(const T* from, float, All) {
  return load(from, All{});
}
template <class T>
inline Floats load_or(const T* from, float other, First lanes) {
  Floats values = load(from, lanes);
  for (int64_t lane = lanes.count; lane < kWidth; ++lane) values[lane] = other;
  return values;
}
template <class Lanes>
inline void store(float* to, Floats values, Lanes lanes) {
  store_raw(to, values, lanes);
}
template <class Lanes>
inline void store(uint16_t* to, Floats values, Lanes lanes) {
  store_raw(to, narrow(values), lanes);
}

// Weights: they must not depend on which operation rounded them.
template <class Lanes>
inline void store_exactly(float* to, Floats values, Lanes lanes) {
  store_raw(to, values, lanes);
}
template <class Lanes>
inline void store_exactly(uint16_t* to, Floats values, Lanes lanes) {
  store_raw(to, narrow_exactly(values), lanes);
}

template <class Each, size_t... kIndex>
__attribute__((always_inline)) inline void unrolled_over(const Each& each, std::index_sequence<kIndex...>) {
  (each(std::integral_constant<int, kIndex>{}), ...);
}
// each(i) for i < kCount, without a loop: arrays of vectors that it indexes then stay in registers.
template <int kCount, class Each>
__attribute__((always_inline)) inline void unrolled(const Each& each) {
  unrolled_over(each, std::make_index_sequence<kCount>());
}

// body(i, lanes) for each vector of [begin, end).
template <class Body>
inline void for_vectors(int64_t begin, int64_t end, const Body& body) {
  int64_t i = begin;
  for (; i + kWidth <= end; i += kWidth) body(i, All{});
  if (i < end) body(i, First{end - i});
}

// Sums over [0, count), `Sums` of them at once: body(i, lanes, partial) adds vector i to partial[0 .. Sums).
// Four sets of partial sums hide the latency of an addition; lanes beyond `count` must add 0.
template <int Sums, class Body>
__attribute__((flatten)) inline void sum_vectors(int64_t count, float (&sums)[Sums], const Body& body) {
  Floats partial[4][Sums] = {};
  int64_t i = 0;
  for (; i + 4 * kWidth <= count; i += 4 * kWidth) {
    unrolled<4>([&](auto set) { body(i + set * kWidth, All{}, partial[set]); });
  }
  for (; i + kWidth <= count; i += kWidth) body(i, All{}, partial[0]);
  if (i < count) body(i, First{count - i}, partial[1]);
  unrolled<Sums>([&](auto s) {
    sums[s] = sum_lanes((partial[0][s] + partial[1][s]) + (partial[2][s] + partial[3][s]));
  });
}

// Calls body with a null pointer of the element type, so that `auto` names it.
template <class Body>
inline void with_type(DType type, const Body& body) {
  if (type == DType::kF32) {
    body(static_cast<float*>(nullptr));
  } else {
    body(static_cast<uint16_t*>(nullptr));
  }
}

template <class T>
inline const T* elements(ConstRef array) {
  return static_cast<const T*>(array.data);
}
template <class T>
inline T* elements(Ref array) {
  return static_cast<T*>(array.data);
}

}  // namespace trainer::TRAINER_ISA
