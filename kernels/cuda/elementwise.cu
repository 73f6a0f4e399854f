// Operations on each element by itself: conversions, sums, activations, rotations.
#include "cuda/kernels.h"
#include "cuda/vectors.h"

namespace trainer::TRAINER_DEVICE_NAMESPACE {
namespace {

template <class To, class From>
__global__ void __launch_bounds__(kPlainBlock)
    convert_kernel(To* to, int64_t to_stride, const From* from, int64_t from_stride, int64_t rows,
                   int64_t columns, bool vectors) {
  const int64_t runs = divide_up(columns, kRun), index = thread_of_grid();
  const int64_t row = index / runs, column = index % runs * kRun;
  if (row >= rows) return;
  float values[kRun];
  load_run(values, from + row * from_stride + column, columns - column, vectors);
  store_run(to + row * to_stride + column, values, columns - column, vectors);
}

template <class To, class From>
__global__ void __launch_bounds__(kPlainBlock) add_kernel(To* y, const From* x, int64_t count, bool vectors) {
  const int64_t first = thread_of_grid() * kRun;
  if (first >= count) return;
  float sums[kRun], others[kRun];
  load_run(sums, y + first, count - first, vectors);
  load_run(others, x + first, count - first, vectors);
  TRAINER_UNROLL
  for (int i = 0; i < kRun; ++i) sums[i] += others[i];
  store_run(y + first, sums, count - first, vectors);
}

// 1 / (1 + e^-x) and what it lacks to 1, each to its own last place.
struct Sigmoid {
  float value, rest;
};
__device__ __forceinline__ Sigmoid sigmoid_of(float x) {
  const float e = expf(-fabsf(x)), large = 1.0f / (1.0f + e), small = e * large;
  return x >= 0.0f ? Sigmoid{large, small} : Sigmoid{small, large};
}

template <class T>
__global__ void __launch_bounds__(kPlainBlock)
    swiglu_forward_kernel(T* y, const T* gate_up, int64_t tokens, int64_t ffn, bool vectors) {
  const int64_t runs = divide_up(ffn, kRun), index = thread_of_grid();
  const int64_t token = index / runs, column = index % runs * kRun;
  if (token >= tokens) return;
  const T* const row = gate_up + token * 2 * ffn + column;
  float gate[kRun], up[kRun];
  load_run(gate, row, ffn - column, vectors);
  load_run(up, row + ffn, ffn - column, vectors);
  TRAINER_UNROLL
  for (int i = 0; i < kRun; ++i) up[i] *= gate[i] * sigmoid_of(gate[i]).value;
  store_run(y + token * ffn + column, up, ffn - column, vectors);
}

template <class T>
__global__ void __launch_bounds__(kPlainBlock)
    swiglu_backward_kernel(T* dgate_up, const T* dy, const T* gate_up, int64_t tokens, int64_t ffn,
                           bool vectors) {
  const int64_t runs = divide_up(ffn, kRun), index = thread_of_grid();
  const int64_t token = index / runs, column = index % runs * kRun;
  if (token >= tokens) return;
  const int64_t at = token * 2 * ffn + column, left = ffn - column;
  float gate[kRun], up[kRun], slope[kRun];
  load_run(gate, gate_up + at, left, vectors);
  load_run(up, gate_up + at + ffn, left, vectors);
  load_run(slope, dy + token * ffn + column, left, vectors);
  TRAINER_UNROLL
  for (int i = 0; i < kRun; ++i) {
    const Sigmoid s = sigmoid_of(gate[i]);
    const float dgate = slope[i] * up[i] * s.value * (1.0f + gate[i] * s.rest);
    up[i] = slope[i] * gate[i] * s.value;
    gate[i] = dgate;
  }
  store_run(dgate_up + at, gate, left, vectors);
  store_run(dgate_up + at + ffn, up, left, vectors);
}

constexpr float kRootTwoOverPi = 0.7978845608028654f, kCubic = 0.044715f;
constexpr float kRootHalf = 0.7071067811865476f, kOneOverRootTwoPi = 0.3989422804014327f;

// (1 + tanh(u)) / 2 = 1 / (1 + e^-2u).
__device__ __forceinline__ Sigmoid tanh_gate(float x) {
  return sigmoid_of(2.0f * kRootTwoOverPi * (x + kCubic * x * x * x));
}

template <class T>
__global__ void __launch_bounds__(kPlainBlock)
    gelu_forward_kernel(T* y, const T* x, int64_t count, bool exact, bool vectors) {
  const int64_t first = thread_of_grid() * kRun;
  if (first >= count) return;
  float values[kRun];
  load_run(values, x + first, count - first, vectors);
  TRAINER_UNROLL
  for (int i = 0; i < kRun; ++i) {
    values[i] *= exact ? 0.5f * erfcf(-kRootHalf * values[i]) : tanh_gate(values[i]).value;
  }
  store_run(y + first, values, count - first, vectors);
}

template <class T>
__global__ void __launch_bounds__(kPlainBlock)
    gelu_backward_kernel(T* dx, const T* dy, const T* x, int64_t count, bool exact, bool vectors) {
  const int64_t first = thread_of_grid() * kRun;
  if (first >= count) return;
  float values[kRun], slopes[kRun];
  load_run(values, x + first, count - first, vectors);
  load_run(slopes, dy + first, count - first, vectors);
  TRAINER_UNROLL
  for (int i = 0; i < kRun; ++i) {
    const float value = values[i];
    float slope;
    if (exact) {
      slope = 0.5f * erfcf(-kRootHalf * value) + value * (kOneOverRootTwoPi * expf(-0.5f * value * value));
    } else {
      const Sigmoid s = tanh_gate(value);
      const float inner = kRootTwoOverPi * (1.0f + 3.0f * kCubic * value * value);
      slope = s.value + value * 2.0f * s.value * s.rest * inner;
    }
    slopes[i] *= slope;
  }
  store_run(dx + first, slopes, count - first, vectors);
}

// A thread rotates a run of pairs, which it reads before it writes: out may be in.
template <class To, class From>
__global__ void __launch_bounds__(kPlainBlock)
    rope_kernel(To* out, const From* in, RopeArguments a, bool vectors) {
  const int64_t half = a.head_dim / 2, runs = divide_up(half, kRun), index = thread_of_grid();
  const int64_t token = index / (runs * a.heads);
  if (token >= a.tokens) return;
  const int64_t head = index / runs % a.heads, column = index % runs * kRun, left = half - column;
  const int64_t from = token * a.in_stride + head * a.head_dim + column;
  const int64_t to = token * a.out_stride + head * a.head_dim + column;
  const int64_t angle = a.positions[token] * half + column;
  float low[kRun], high[kRun], cosine[kRun], sine[kRun];
  load_run(low, in + from, left, vectors);
  load_run(high, in + from + half, left, vectors);
  load_run(cosine, a.cosine + angle, left, vectors);
  load_run(sine, a.sine + angle, left, vectors);
  TRAINER_UNROLL
  for (int i = 0; i < kRun; ++i) {
    const float turn = a.inverse ? -sine[i] : sine[i], x = low[i], y = high[i];
    low[i] = x * cosine[i] - y * turn;
    high[i] = y * cosine[i] + x * turn;
  }
  store_run(out + to, low, left, vectors);
  store_run(out + to + half, high, left, vectors);
}

}  // namespace

void convert_rows(Ref to, int64_t to_stride, ConstRef from, int64_t from_stride, int64_t rows,
                  int64_t columns, Stream stream) {
  const bool vectors = fit_vectors({{to, to_stride}, {from, from_stride}});
  with_element(to.dtype, [&]<class To>(To) {
    with_element(from.dtype, [&]<class From>(From) {
      launch_over(convert_kernel<To, From>, rows * divide_up(columns, kRun), stream, elements<To>(to),
                  to_stride, elements<From>(from), from_stride, rows, columns, vectors);
    });
  });
}

void add(Ref y, ConstRef x, int64_t count, Stream stream) {
  with_element(y.dtype, [&]<class To>(To) {
    with_element(x.dtype, [&]<class From>(From) {
      launch_over(add_kernel<To, From>, divide_up(count, kRun), stream, elements<To>(y), elements<From>(x),
                  count, fit_vectors({{y}, {x}}));
    });
  });
}

void swiglu_forward(Ref y, ConstRef gate_up, int64_t tokens, int64_t ffn, Stream stream) {
  with_element(y.dtype, [&]<class T>(T) {
    launch_over(swiglu_forward_kernel<T>, tokens * divide_up(ffn, kRun), stream, elements<T>(y),
                elements<T>(gate_up), tokens, ffn, fit_vectors({{y, ffn}, {gate_up, ffn}}));
  });
}

void swiglu_backward(Ref dgate_up, ConstRef dy, ConstRef gate_up, int64_t tokens, int64_t ffn,
                     Stream stream) {
  with_element(dy.dtype, [&]<class T>(T) {
    launch_over(swiglu_backward_kernel<T>, tokens * divide_up(ffn, kRun), stream, elements<T>(dgate_up),
                elements<T>(dy), elements<T>(gate_up), tokens, ffn,
                fit_vectors({{dgate_up, ffn}, {dy, ffn}, {gate_up, ffn}}));
  });
}

void gelu_forward(Ref y, ConstRef x, int64_t count, bool exact, Stream stream) {
  with_element(y.dtype, [&]<class T>(T) {
    launch_over(gelu_forward_kernel<T>, divide_up(count, kRun), stream, elements<T>(y), elements<T>(x), count,
                exact, fit_vectors({{y}, {x}}));
  });
}

void gelu_backward(Ref dx, ConstRef dy, ConstRef x, int64_t count, bool exact, Stream stream) {
  with_element(dx.dtype, [&]<class T>(T) {
    launch_over(gelu_backward_kernel<T>, divide_up(count, kRun), stream, elements<T>(dx), elements<T>(dy),
                elements<T>(x), count, exact, fit_vectors({{dx}, {dy}, {x}}));
  });
}

void rope(Ref out, ConstRef in, const RopeArguments& a, Stream stream) {
  const int64_t half = a.head_dim / 2;
  const bool vectors = fit_vectors({{out, a.out_stride},
                                    {in, a.in_stride},
                                    {out, half},
                                    {in, half},
                                    {ref(a.cosine), half},
                                    {ref(a.sine), half}});
  with_element(out.dtype, [&]<class To>(To) {
    with_element(in.dtype, [&]<class From>(From) {
      launch_over(rope_kernel<To, From>, a.tokens * a.heads * divide_up(half, kRun), stream,
                  elements<To>(out), elements<From>(in), a, vectors);
    });
  });
}

}  // namespace trainer::TRAINER_DEVICE_NAMESPACE
