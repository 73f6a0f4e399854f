// Elementary functions on vectors, accurate to about 2 units in the last place of fp32 over the whole range.
#pragma once

#include "cpu/vector.h"

namespace trainer::TRAINER_ISA {

// e^x for x in [-104, 89], which includes what underflows to 0 and overflows to infinity; NaN stays.
inline Floats exponential_in_range(Floats x) {
  // x = n ln 2 + r with |r| <= ln 2 / 2. Adding 1.5 x 2^23 rounds to an integer, found in the low bits. ln 2
  // in two parts: n times the first is exact.
  constexpr float kRound = 0x1.8p23f, kLog2E = 0x1.715476p0f, kLn2High = 0x1.62e400p-1f,
                  kLn2Low = 0x1.7f7d1cp-20f;
  const Floats shifted = x * kLog2E + kRound;
  const Floats n = shifted - kRound;
  Floats r = multiply_add(n, broadcast(-kLn2High), x);
  r = multiply_add(n, broadcast(-kLn2Low), r);
  // e^r = 1 + r + r^2 q(r); q is a minimax fit, relative error 3.2e-9.
  Floats q = broadcast(0.0013819825f);
  q = multiply_add(q, r, broadcast(0.008368687f));
  q = multiply_add(q, r, broadcast(0.041668277f));
  q = multiply_add(q, r, broadcast(0.16666521f));
  q = multiply_add(q, r, broadcast(0.49999994f));
  const Floats power = multiply_add(q, r * r, r) + 1.0f;
#if TRAINER_VECTOR_WIDTH == 16
  return _mm512_scalef_ps(power, n);
#else
  // 2^n in two factors: one alone would leave the range of normal numbers at both ends.
  const Words bits = as_words(shifted) - as_words(broadcast(kRound));
  const Integers exponent = reinterpret_cast<Integers>(bits);
  const Integers first = exponent >> 1, second = exponent - first;
  const Integers first_bits = (first + 127) << 23, second_bits = (second + 127) << 23;
  return power * reinterpret_cast<Floats>(first_bits) * reinterpret_cast<Floats>(second_bits);
#endif
}

// e^x. Underflow goes through denormals to 0, overflow to infinity, NaN stays.
inline Floats exponential(Floats x) { return exponential_in_range(at_most(at_least(x, -104.0f), 89.0f)); }

// 1 / x for x whose reciprocal is a normal number. A division costs several times the rest of a sigmoid.
inline Floats reciprocal(Floats x) {
#if TRAINER_VECTOR_WIDTH == 16
  // 14 bits, doubled by a Newton step.
  const Floats guess = _mm512_rcp14_ps(x);
  return multiply_add(guess, multiply_add(-x, guess, broadcast(1.0f)), guess);
#else
  return 1.0f / x;
#endif
}

// 1 / (1 + e^-x), and its complement, each with a small relative error.
struct Sigmoid {
  Floats value, complement;
};
inline Sigmoid sigmoid(Floats x) {
  const Floats e = exponential_in_range(-at_most(at_least(x, -87.0f), 87.0f));
  const Floats value = reciprocal(1.0f + e);
  return {value, e * value};
}

// The distribution function of the standard normal, (1 + erf(x / sqrt 2)) / 2.
inline Floats normal_distribution(Floats x) {
  const Floats z = at_most(absolute(x) * 0.70710678f, 12.0f);
  // erfc(z) = t exp(-z^2 + p(t)) with t = 1 / (1 + z / 2); p is a minimax fit, absolute error 7.5e-8.
  const Floats t = reciprocal(1.0f + 0.5f * z);
  Floats p = broadcast(0.16846351f);
  p = multiply_add(p, t, broadcast(-0.8076817f));
  p = multiply_add(p, t, broadcast(1.4516202f));
  p = multiply_add(p, t, broadcast(-1.0829827f));
  p = multiply_add(p, t, broadcast(0.23388967f));
  p = multiply_add(p, t, broadcast(-0.16201334f));
  p = multiply_add(p, t, broadcast(0.08865061f));
  p = multiply_add(p, t, broadcast(0.3757043f));
  p = multiply_add(p, t, broadcast(0.99985456f));
  p = multiply_add(p, t, broadcast(-1.2655052f));
  const Floats tail = 0.5f * t * exponential(multiply_add(-z, z, p));
  return x < 0.0f ? tail : 1.0f - tail;
}

// e^(-x^2 / 2) / sqrt(2 pi).
inline Floats normal_density(Floats x) { return 0.39894228f * exponential(-0.5f * x * x); }

}  // namespace trainer::TRAINER_ISA
