// Normal random numbers: what Philox::normal gives, many at a time.
//
// Logarithm and cosine are polynomials here and the C library's there, so the products may differ in their
// last bits, far less than kDoubt. Where that could show after rounding to float, the number is called
// doubtful and left to the caller, so that all levels give the same floats.
#pragma once

#include "cpu/vector.h"
#include "cpu/vector_table.h"

namespace trainer::TRAINER_ISA {

constexpr int kPairLanes = kWidth / 2;
typedef double Doubles __attribute__((vector_size(kPairLanes * 8)));
typedef uint64_t Longs __attribute__((vector_size(kPairLanes * 8)));
typedef float HalfFloats __attribute__((vector_size(kPairLanes * 4)));

constexpr double kDoubt = 0x1p-44;  // relative; both ways of computing are nearer to the truth than 2^-48
constexpr uint64_t kWordMask = 0xFFFFFFFF;

inline Doubles as_doubles(Longs bits) { return reinterpret_cast<Doubles>(bits); }
inline Longs as_longs(Doubles values) { return reinterpret_cast<Longs>(values); }

inline Doubles multiply_add(Doubles a, Doubles b, Doubles c) {
#if TRAINER_VECTOR_WIDTH == 16
  return _mm512_fmadd_pd(a, b, c);
#elif TRAINER_VECTOR_WIDTH == 8
  return _mm256_fmadd_pd(a, b, c);
#else
  return a * b + c;
#endif
}

inline Doubles square_root(Doubles x) {
#if TRAINER_VECTOR_WIDTH == 16
  return _mm512_sqrt_pd(x);
#elif TRAINER_VECTOR_WIDTH == 8
  return _mm256_sqrt_pd(x);
#else
  for (int lane = 0; lane < kPairLanes; ++lane) x[lane] = __builtin_sqrt(x[lane]);
  return x;
#endif
}

// The low words of `a`, times b.
inline Longs multiply_words(Longs a, uint32_t b) {
#if TRAINER_VECTOR_WIDTH == 16
  return reinterpret_cast<Longs>(_mm512_mul_epu32(reinterpret_cast<__m512i>(a), _mm512_set1_epi64(b)));
#elif TRAINER_VECTOR_WIDTH == 8
  return reinterpret_cast<Longs>(_mm256_mul_epu32(reinterpret_cast<__m256i>(a), _mm256_set1_epi64x(b)));
#elif defined(__x86_64__)
  return reinterpret_cast<Longs>(_mm_mul_epu32(reinterpret_cast<__m128i>(a), _mm_set1_epi64x(b)));
#else
  return (a & kWordMask) * b;
#endif
}

// Integers below 2^52 as doubles.
inline Doubles to_double(Longs values) { return as_doubles(values | 0x4330000000000000) - 0x1p52; }

// c0 + x (c1 + x (c2 + ...))
template <int Count>
inline Doubles polynomial(const double (&c)[Count], Doubles x) {
  Doubles sum = Doubles{} + c[Count - 1];
  for (int i = Count - 2; i >= 0; --i) sum = multiply_add(sum, x, Doubles{} + c[i]);
  return sum;
}

// Of values in [2^-32, 1].
inline Doubles logarithm(Doubles x) {
  constexpr uint64_t kRootHalf = 0x3FE6A09E667F3BCD, kBias = 64;
  constexpr double kLn2 = 0x1.62e42fefa39efp-1;
  // 2 artanh(s) / (2 s) by the powers of s^2
  constexpr double kSeries[] = {1.0,      1.0 / 3,  1.0 / 5,  1.0 / 7,  1.0 / 9,
                                1.0 / 11, 1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19};
  // x = 2^exponent m, with m in [sqrt(1/2), sqrt(2))
  const Longs exponent = (as_longs(x) - kRootHalf + (kBias << 52)) >> 52;  // biased
  const Doubles m = as_doubles(as_longs(x) - ((exponent - kBias) << 52));
  const Doubles s = (m - 1.0) / (m + 1.0);
  return multiply_add(to_double(exponent) - double{kBias}, Doubles{} + kLn2,
                      2.0 * s * polynomial(kSeries, s * s));
}

// Of the angle 2 pi word / 2^32 as it is in double precision.
inline Doubles cosine(Longs word) {
  constexpr double kTwoPi = 0x1.921fb54442d18p+2;
  // pi / 2 in three parts; multiples of the first two are exact
  constexpr double kPart1 = 0x1.921fb544p+0, kPart2 = 0x1.0b4611a6p-34, kPart3 = 0x1.3198a2e037073p-69;
  constexpr double kCosine[] = {1.0,
                                -1.0 / 2,
                                1.0 / 24,
                                -1.0 / 720,
                                1.0 / 40320,
                                -1.0 / 3628800,
                                1.0 / 479001600,
                                -1.0 / 87178291200,
                                1.0 / 20922789888000};
  constexpr double kSine[] = {1.0,
                              -1.0 / 6,
                              1.0 / 120,
                              -1.0 / 5040,
                              1.0 / 362880,
                              -1.0 / 39916800,
                              1.0 / 6227020800,
                              -1.0 / 1307674368000,
                              1.0 / 355687428096000};
  const Doubles angle = kTwoPi * to_double(word) * 0x1p-32;
  const Longs quarter = (word + (uint64_t{1} << 29)) >> 30;  // the nearest multiple of pi / 2: 0 to 4
  const Doubles k = to_double(quarter);
  const Doubles r = ((angle - k * kPart1) - k * kPart2) - k * kPart3;
  const Doubles square = r * r;
  const Longs sine = as_longs(r * polynomial(kSine, square)), cosine = as_longs(polynomial(kCosine, square));
  const Longs odd = 0 - (quarter & 1);  // all bits set or none
  // cos r, -sin r, -cos r, sin r, cos r
  const Longs sign = ((quarter + 1) & 2) << 62;
  return as_doubles(((sine & odd) | (cosine & ~odd)) ^ sign);
}

// Of the lower words.
inline Doubles box_muller(Longs first, Longs second) {
  const Doubles u = (to_double(first & kWordMask) + 1.0) * 0x1p-32;
  return square_root(-2.0 * logarithm(u)) * cosine(second & kWordMask);
}

// See VectorTable::normal_pairs.
inline int normal_pairs(uint64_t key, uint64_t counter, float* values, int* doubtful) {
  int doubts = 0;
  for (int done = 0; done < kNormalPairs; done += kPairLanes) {
    Longs counters{};
    for (int lane = 0; lane < kPairLanes; ++lane)
      counters[lane] = counter + static_cast<uint64_t>(done + lane);
    // Words in the lower halves; what the upper ones hold does not matter before the end.
    Longs c0 = counters, c1 = counters >> 32, c2{}, c3{};
    uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < Philox::kRounds; ++round) {
      const Longs p0 = multiply_words(c0, Philox::kMultiplier0),
                  p1 = multiply_words(c2, Philox::kMultiplier1);
      c0 = (p1 >> 32) ^ c1 ^ uint64_t { k0 };
      c1 = p1;
      c2 = (p0 >> 32) ^ c3 ^ uint64_t { k1 };
      c3 = p0;
      k0 += Philox::kWeyl0;
      k1 += Philox::kWeyl1;
    }
    const Doubles pair[2] = {box_muller(c0, c1), box_muller(c2, c3)};
    for (int half = 0; half < 2; ++half) {
      const HalfFloats low = __builtin_convertvector(pair[half] * (1 - kDoubt), HalfFloats);
      const HalfFloats high = __builtin_convertvector(pair[half] * (1 + kDoubt), HalfFloats);
      for (int lane = 0; lane < kPairLanes; ++lane) values[2 * (done + lane) + half] = low[lane];
      if (std::memcmp(&low, &high, sizeof low) == 0) continue;
      for (int lane = 0; lane < kPairLanes; ++lane)
        if (low[lane] != high[lane]) doubtful[doubts++] = 2 * (done + lane) + half;
    }
  }
  return doubts;
}

}  // namespace trainer::TRAINER_ISA
