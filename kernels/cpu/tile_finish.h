// The end of a product (tile_table.h): bias, what was there before or the weights of a softmax, rounding.
#pragma once

#include "cpu/tile_table.h"
#include "cpu/vector_math.h"

namespace trainer::TRAINER_ISA {

constexpr int64_t kPanel = 2 * kWidth;

// e^x for x of at most about 0; 0 where it would be denormal: arithmetic on denormals is slow and these are
// terms of a sum near 1.
inline Floats weight_of(Floats x) {
  return x < -87.0f ? Floats{} : exponential_in_range(at_least(x, -104.0f));
}

inline float largest_lane(Floats x) {
#if TRAINER_VECTOR_WIDTH == 16
  return _mm512_reduce_max_ps(x);
#else
  float result = x[0];
  for (int lane = 1; lane < kWidth; ++lane) result = x[lane] > result ? x[lane] : result;
  return result;
#endif
}

#if TRAINER_BF16
// Two vectors, rounded to bf16: `low` in the lower half.
inline __m512i round_pair(Floats low, Floats high) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}
inline void store_panel(uint16_t* to, Floats low, Floats high) {
  store_raw(to, round_pair(low, high), All{});
}
#else
inline void store_panel(uint16_t* to, Floats low, Floats high) {
  store(to, low, All{});
  store(to + kWidth, high, All{});
}
#endif
inline void store_panel(float* to, Floats low, Floats high) {
  store(to, low, All{});
  store(to + kWidth, high, All{});
}

// value(i, lanes) are the elements i of a row.
template <class T, class Value>
inline void store_row(T* c, int64_t columns, const Value& value) {
  if (columns == kPanel) {
    const Floats low = value(0, All{}), high = value(kWidth, All{});
    store_panel(c, low, high);
  } else {
    for_vectors(0, columns, [&](int64_t i, auto lanes) { store(c + i, value(i, lanes), lanes); });
  }
}

// Finishes `rows` rows of a panel, from row `row` of C on; their sums lie kPanel apart.
using FinishRows = void (*)(const TileFinish& f, const float* sums, int64_t row, int64_t rows);

template <class T, class B>
inline void finish_rows(const TileFinish& f, const float* sums, int64_t row, int64_t rows) {
  const B* bias = elements<B>(f.bias);
  for (int64_t r = 0; r < rows; ++r) {
    T* c = elements<T>(f.c) + (row + r) * f.c_stride;
    store_row(c, f.columns, [&](int64_t i, auto lanes) {
      Floats value = load(sums + r * kPanel + i, lanes);
      if (bias) value += load(bias + i, lanes);
      if (f.add) value += load(c + i, lanes);
      return value;
    });
  }
}

template <class T>
inline void weigh_rows(const TileFinish& f, const float* sums, int64_t row, int64_t rows) {
  constexpr float kNothing = -__builtin_inff();
  const PanelSoftmax& softmax = *f.softmax;
  for (int64_t r = 0; r < rows; ++r) {
    T* c = elements<T>(f.c) + (row + r) * f.c_stride;
    const float* logits = sums + r * kPanel;
    Floats low, high;
    if (f.columns == kPanel) {
      low = load(logits, All{});
      high = load(logits + kWidth, All{});
    } else {
      low = load_or(logits, kNothing, First{smaller(f.columns, kWidth)});
      high = load_or(logits + kWidth, kNothing, First{larger(f.columns - kWidth, 0)});
    }
    const float top = largest_lane(low > high ? low : high);
    low = weight_of(low - top);
    high = weight_of(high - top);
    softmax.largest[(row + r) * softmax.stride] = top;
    softmax.total[(row + r) * softmax.stride] = sum_lanes(low + high);
    const int64_t label = int64_t{softmax.labels[row + r]} - softmax.first;
    if (label >= 0 && label < f.columns) softmax.label_logits[row + r] = logits[label];
    store_row(c, f.columns, [&](int64_t i, auto) { return i == 0 ? low : high; });
  }
}

template <FinishRows kRows>
struct FinishBy {
  static constexpr bool kAny = true;
  static constexpr FinishRows rows = kRows;
};

// Calls body.operator()<the FinishBy of f>().
template <class Body>
inline void with_finish(const TileFinish& f, const Body& body) {
  with_type(f.c.dtype, [&]<class T>(T*) {
    if (f.softmax) return body.template operator()<FinishBy<weigh_rows<T>>>();
    with_type(f.bias.dtype, [&]<class B>(B*) { body.template operator()<FinishBy<finish_rows<T, B>>>(); });
  });
}

inline double join_panels(const float* largest, const float* total, int64_t panels, float top) {
  constexpr int64_t kBlock = 4096;
  double sum = 0.0;
  for (int64_t begin = 0; begin < panels; begin += kBlock) {
    float sums[1];
    sum_vectors<1>(smaller(kBlock, panels - begin), sums, [&](int64_t i, auto lanes, Floats* partial) {
      const Floats weight = weight_of(load(largest + begin + i, lanes) - top);
      partial[0] = multiply_add(load(total + begin + i, lanes), weight, partial[0]);
    });
    sum += sums[0];
  }
  return sum;
}

inline void scale_panels(Ref y, const float* largest, float top, float scale, int64_t columns) {
  with_type(y.dtype, [&]<class T>(T*) {
    T* to = elements<T>(y);
    for_vectors(0, (columns + kPanel - 1) / kPanel, [&](int64_t panel, auto lanes) {
      const Floats factors = weight_of(load(largest + panel, lanes) - top) * scale;
      for (int64_t p = panel; p < panel + kWidth && p * kPanel < columns; ++p) {
        T* at = to + p * kPanel;
        const Floats factor = broadcast(factors[p - panel]);
        store_row(at, smaller(kPanel, columns - p * kPanel),
                  [&](int64_t i, auto rest) { return load(at + i, rest) * factor; });
      }
    });
  });
}

}  // namespace trainer::TRAINER_ISA
