// RMSNorm and LayerNorm, row by row. A row is read from memory once; later passes find it in the nearest
// cache.
#pragma once

#include "cpu/vector.h"

namespace trainer::TRAINER_ISA {

inline int64_t row_offset(const RowShape& shape, int64_t row) {
  return row / shape.inner * shape.outer_stride + row % shape.inner * shape.columns;
}

// x + delta is rounded to the element type before anything is computed from it: a later norm of the stored
// sum, as a recomputation does it, gives the same bits.
template <class T>
inline const T* add_delta(const NormForward& a, int64_t at) {
  const T* x = elements<T>(a.x) + at;
  if (!a.delta) return x;
  const T* delta = elements<T>(a.delta) + at;
  T* sum = elements<T>(a.sum) + at;
  for_vectors(0, a.x_shape.columns, [&](int64_t c, auto lanes) {
    store(sum + c, load(x + c, lanes) + load(delta + c, lanes), lanes);
  });
  return sum;
}

template <class T>
inline void rms_norm_row(const NormForward& a, int64_t row) {
  const int64_t columns = a.x_shape.columns;
  const T* x = add_delta<T>(a, row_offset(a.x_shape, row));
  const T* weight = elements<T>(a.weight);
  const T* bias = elements<T>(a.bias);
  T* y = elements<T>(a.y) + row_offset(a.y_shape, row);
  float square[1];
  sum_vectors(columns, square, [&](int64_t c, auto lanes, Floats* sums) {
    const Floats value = load(x + c, lanes);
    sums[0] = multiply_add(value, value, sums[0]);
  });
  const float reciprocal = 1.0f / __builtin_sqrtf(square[0] / static_cast<float>(columns) + a.epsilon);
  a.reciprocal[row] = reciprocal;
  for_vectors(0, columns, [&](int64_t c, auto lanes) {
    Floats value = load(x + c, lanes) * reciprocal * load(weight + c, lanes);
    if (bias) value += load(bias + c, lanes);
    store(y + c, value, lanes);
  });
}

template <class T>
inline void layer_norm_row(const NormForward& a, int64_t row) {
  const int64_t columns = a.x_shape.columns;
  const T* x = add_delta<T>(a, row_offset(a.x_shape, row));
  const T* weight = elements<T>(a.weight);
  const T* bias = elements<T>(a.bias);
  T* y = elements<T>(a.y) + row_offset(a.y_shape, row);
  float sum[1], square[1];
  sum_vectors(columns, sum, [&](int64_t c, auto lanes, Floats* sums) { sums[0] += load(x + c, lanes); });
  const float mean = sum[0] / static_cast<float>(columns);
  sum_vectors(columns, square, [&](int64_t c, auto lanes, Floats* sums) {
    const Floats centred = load_or(x + c, mean, lanes) - mean;
    sums[0] = multiply_add(centred, centred, sums[0]);
  });
  const float reciprocal = 1.0f / __builtin_sqrtf(square[0] / static_cast<float>(columns) + a.epsilon);
  a.mean[row] = mean;
  a.reciprocal[row] = reciprocal;
  for_vectors(0, columns, [&](int64_t c, auto lanes) {
    Floats value = (load(x + c, lanes) - mean) * reciprocal * load(weight + c, lanes);
    if (bias) value += load(bias + c, lanes);
    store(y + c, value, lanes);
  });
}

inline void norm_forward(const NormForward& a, int64_t begin, int64_t end) {
  with_type(a.x.dtype, [&]<class T>(T*) {
    for (int64_t row = begin; row < end; ++row) {
      if (a.kind == NormKind::kRms) {
        rms_norm_row<T>(a, row);
      } else {
        layer_norm_row<T>(a, row);
      }
    }
  });
}

// T: of x, weight, dresidual and dx. U: of dy. The first pass over a row reads all of dy that the second one
// may overwrite.
template <class T, class U, bool kLayer>
inline void norm_backward_row(const NormBackward& a, int64_t row, float* dweight, float* dbias) {
  const int64_t columns = a.x_shape.columns, dx_at = row_offset(a.dx_shape, row);
  const T* x = elements<T>(a.x) + row_offset(a.x_shape, row);
  const T* weight = elements<T>(a.weight);
  const U* dy = elements<U>(a.dy) + row_offset(a.dy_shape, row);
  const T* dresidual = a.dresidual ? elements<T>(a.dresidual) + dx_at : nullptr;
  T* dx = elements<T>(a.dx) + dx_at;
  const float reciprocal = a.reciprocal[row];
  const float mean = kLayer ? a.mean[row] : 0.0f;
  float sums[2];  // of dy x weight x normalised x, and of dy x weight
  sum_vectors(columns, sums, [&](int64_t c, auto lanes, Floats* partial) {
    const Floats scaled = load(dy + c, lanes) * load(weight + c, lanes);
    partial[0] = multiply_add(scaled, (load(x + c, lanes) - mean) * reciprocal, partial[0]);
    if (kLayer) partial[1] += scaled;
  });
  const float slope = sums[0] / static_cast<float>(columns);
  const float shift = kLayer ? sums[1] / static_cast<float>(columns) : 0.0f;
  for_vectors(0, columns, [&](int64_t c, auto lanes) {
    const Floats gradient = load(dy + c, lanes);
    const Floats normalised = (load(x + c, lanes) - mean) * reciprocal;
    if (dweight) store(dweight + c, multiply_add(gradient, normalised, load(dweight + c, lanes)), lanes);
    if (dbias) store(dbias + c, load(dbias + c, lanes) + gradient, lanes);
    Floats value = gradient * load(weight + c, lanes) - shift;
    value = multiply_add(normalised, broadcast(-slope), value) * reciprocal;
    if (dresidual) value += load(dresidual + c, lanes);
    store(dx + c, value, lanes);
  });
}

inline void norm_backward(const NormBackward& a, int64_t begin, int64_t end, float* dweight, float* dbias) {
  with_type(a.x.dtype, [&]<class T>(T*) {
    with_type(a.dy.dtype, [&]<class U>(U*) {
      for (int64_t row = begin; row < end; ++row) {
        if (a.kind == NormKind::kRms) {
          norm_backward_row<T, U, false>(a, row, dweight, dbias);
        } else {
          norm_backward_row<T, U, true>(a, row, dweight, dbias);
        }
      }
    });
  });
}

}  // namespace trainer::TRAINER_ISA
