// Loops without sums over rows: activations, rotation, optimizer, conversion.
#pragma once

#include "cpu/vector_math.h"
#include "cpu/vector_table.h"

namespace trainer::TRAINER_ISA {

inline void rope(Ref out, ConstRef in, const RopeArguments& a, int64_t begin, int64_t end) {
  const int64_t half = a.head_dim / 2;
  const float direction = a.inverse ? -1.0f : 1.0f;
  with_type(in.dtype, [&]<class From>(From*) {
    with_type(out.dtype, [&]<class To>(To*) {
      for (int64_t t = begin; t < end; ++t) {
        const float* cosine = a.cosine + a.positions[t] * half;
        const float* sine = a.sine + a.positions[t] * half;
        for (int64_t h = 0; h < a.heads; ++h) {
          const From* from = elements<From>(in) + t * a.in_stride + h * a.head_dim;
          To* to = elements<To>(out) + t * a.out_stride + h * a.head_dim;
          for_vectors(0, half, [&](int64_t i, auto lanes) {
            const Floats low = load(from + i, lanes), high = load(from + half + i, lanes);
            const Floats c = load(cosine + i, lanes), s = load(sine + i, lanes) * direction;
            store(to + i, multiply_add(low, c, -(high * s)), lanes);
            store(to + half + i, multiply_add(high, c, low * s), lanes);
          });
        }
      }
    });
  });
}

inline void swiglu_forward(Ref y, ConstRef gate, ConstRef up, int64_t columns) {
  with_type(y.dtype, [&]<class T>(T*) {
    for_vectors(0, columns, [&](int64_t i, auto lanes) {
      const Floats g = load(elements<T>(gate) + i, lanes);
      store(elements<T>(y) + i, g * sigmoid(g).value * load(elements<T>(up) + i, lanes), lanes);
    });
  });
}

inline void swiglu_backward(Ref dgate, Ref dup, ConstRef dy, ConstRef gate, ConstRef up, int64_t columns) {
  with_type(dy.dtype, [&]<class T>(T*) {
    for_vectors(0, columns, [&](int64_t i, auto lanes) {
      const Floats g = load(elements<T>(gate) + i, lanes), u = load(elements<T>(up) + i, lanes);
      const Floats gradient = load(elements<T>(dy) + i, lanes);
      const Sigmoid s = sigmoid(g);
      const Floats slope = s.value * multiply_add(g, s.complement, broadcast(1.0f));
      store(elements<T>(dgate) + i, gradient * u * slope, lanes);
      store(elements<T>(dup) + i, gradient * (g * s.value), lanes);
    });
  });
}

// (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 is the sigmoid of twice the argument.
constexpr float kGeluSlope = 2.0f * 0.79788456f, kGeluCubic = 0.044715f;
inline Sigmoid gelu_gate(Floats x) {
  return sigmoid(kGeluSlope * x * multiply_add(x * x, broadcast(kGeluCubic), broadcast(1.0f)));
}

template <bool kExact>
inline Floats gelu(Floats x) {
  return x * (kExact ? normal_distribution(x) : gelu_gate(x).value);
}

template <bool kExact>
inline Floats gelu_slope(Floats x) {
  if (kExact) return multiply_add(x, normal_density(x), normal_distribution(x));
  const Sigmoid s = gelu_gate(x);
  const Floats inner = kGeluSlope * multiply_add(x * x, broadcast(3.0f * kGeluCubic), broadcast(1.0f));
  return multiply_add(x * inner, s.value * s.complement, s.value);
}

template <bool kExact>
inline void gelu_forward_as(Ref y, ConstRef x, int64_t count) {
  with_type(y.dtype, [&]<class T>(T*) {
    for_vectors(0, count, [&](int64_t i, auto lanes) {
      store(elements<T>(y) + i, gelu<kExact>(load(elements<T>(x) + i, lanes)), lanes);
    });
  });
}

inline void gelu_forward(Ref y, ConstRef x, int64_t count, bool exact) {
  exact ? gelu_forward_as<true>(y, x, count) : gelu_forward_as<false>(y, x, count);
}

template <bool kExact>
inline void gelu_backward_as(Ref dx, ConstRef dy, ConstRef x, int64_t count) {
  with_type(dx.dtype, [&]<class T>(T*) {
    for_vectors(0, count, [&](int64_t i, auto lanes) {
      const Floats slope = gelu_slope<kExact>(load(elements<T>(x) + i, lanes));
      store(elements<T>(dx) + i, load(elements<T>(dy) + i, lanes) * slope, lanes);
    });
  });
}

inline void gelu_backward(Ref dx, ConstRef dy, ConstRef x, int64_t count, bool exact) {
  exact ? gelu_backward_as<true>(dx, dy, x, count) : gelu_backward_as<false>(dx, dy, x, count);
}

inline void adamw(const AdamW& a, const AdamWFactors& f, int64_t begin, int64_t end) {
  const bool refresh = a.working && a.working.data != a.master;
  with_type(a.working.dtype, [&]<class T>(T*) {
    for_vectors(begin, end, [&](int64_t i, auto lanes) {
      const Floats gradient = load(a.gradient + i, lanes) * f.gradient_scale;
      const Floats moment1 =
          multiply_add(load(a.moment1 + i, lanes), broadcast(f.beta1), gradient * f.one_minus_beta1);
      const Floats moment2 = multiply_add(load(a.moment2 + i, lanes), broadcast(f.beta2),
                                          gradient * gradient * f.one_minus_beta2);
      const Floats denominator =
          multiply_add(square_root(moment2), broadcast(f.root_correction), broadcast(f.epsilon));
      const Floats kept = load(a.master + i, lanes) * f.decay;
      const Floats master = kept - f.step_size * moment1 / denominator;
      store(a.moment1 + i, moment1, lanes);
      store(a.moment2 + i, moment2, lanes);
      store(a.master + i, master, lanes);
      if (refresh) store_exactly(elements<T>(a.working) + i, master, lanes);
    });
  });
}

// 32 partial sums, element i going to number i mod 32, at every level alike. The square of a float is exact
// in double, so with or without fused multiply-add the bits are the same.
__attribute__((flatten)) inline double sum_of_squares(const float* x, int64_t count) {
  constexpr int kHalf = kWidth / 2, kPartials = 32;
  typedef float HalfFloats __attribute__((vector_size(kHalf * 4)));
  typedef double Doubles __attribute__((vector_size(kHalf * 8)));
  Doubles partial[kPartials / kHalf] = {};
  const auto add_squares = [&](const float* from) {
    unrolled<kPartials / kHalf>([&](auto p) {
      const Doubles value = __builtin_convertvector(load_raw<HalfFloats>(from + p * kHalf, All{}), Doubles);
      partial[p] += value * value;
    });
  };
  // One stream of reads alone does not reach the rate of memory without being asked for ahead.
  constexpr int64_t kAhead = 2048;
  int64_t i = 0;
  for (; i + kPartials <= count; i += kPartials) {
    __builtin_prefetch(x + i + kAhead);
    __builtin_prefetch(x + i + kAhead + kPartials / 2);
    add_squares(x + i);
  }
  float rest[kPartials] = {};
  for (int64_t r = 0; i + r < count; ++r) rest[r] = x[i + r];
  add_squares(rest);
  double sums[kPartials];
  std::memcpy(sums, partial, sizeof(sums));
  for (int half = kPartials / 2; half > 0; half /= 2) {
    for (int p = 0; p < half; ++p) sums[p] += sums[p + half];
  }
  return sums[0];
}

inline void convert(Ref to, ConstRef from, int64_t count) {
  if (to.dtype == from.dtype) {
    std::memcpy(to.data, from.data, static_cast<size_t>(count) * size_of(to.dtype));
    return;
  }
  with_type(from.dtype, [&]<class From>(From*) {
    with_type(to.dtype, [&]<class To>(To*) {
      for_vectors(0, count, [&](int64_t i, auto lanes) {
        store_exactly(elements<To>(to) + i, load(elements<From>(from) + i, lanes), lanes);
      });
    });
  });
}

inline void sum(Ref y, ConstRef a, ConstRef b, int64_t count) {
  with_type(y.dtype, [&]<class Y>(Y*) {
    with_type(a.dtype, [&]<class A>(A*) {
      with_type(b.dtype, [&]<class B>(B*) {
        for_vectors(0, count, [&](int64_t i, auto lanes) {
          store(elements<Y>(y) + i, load(elements<A>(a) + i, lanes) + load(elements<B>(b) + i, lanes), lanes);
        });
      });
    });
  });
}

}  // namespace trainer::TRAINER_ISA
