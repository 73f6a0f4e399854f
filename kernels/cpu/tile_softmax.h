// The loops of attention and the classifier around their products (tile_table.h), of the instruction level
// being compiled.
#pragma once

#include "cpu/tile_product.h"
#include "cpu/vector_math.h"

namespace trainer::TRAINER_ISA {

// e^x, 0 where it would be denormal: arithmetic on denormals is slow and these are terms of a sum near 1.
inline Floats weight_of(Floats x) { return x < -87.0f ? Floats{} : exponential(x); }

inline Integers load_integers(const int32_t* from) { return load_raw<Integers>(from, All{}); }

// Vectors of queries that one pass over the keys handles together.
constexpr int kGroup = 4;
constexpr int64_t kGroupQueries = kGroup * kWidth;

// The lanes of one group of queries that see key `key`.
template <bool kMasked>
struct GroupMask {
  Integers first[kGroup], last[kGroup];
  GroupMask(const ScoreMask& mask, int64_t query) {
    if constexpr (kMasked) {
      for (int g = 0; g < kGroup; ++g) {
        first[g] = load_integers(mask.first + query + g * kWidth);
        last[g] = load_integers(mask.last + query + g * kWidth);
      }
    }
  }
  Floats select(int g, int64_t key, Floats seen, Floats hidden) const {
    if constexpr (!kMasked) return seen;
    const Integers position = static_cast<int32_t>(key) - Integers{};
    return ((position >= first[g]) & (position < last[g])) ? seen : hidden;
  }
};

template <bool kMasked>
inline bool softmax_step_group(float* scores, int64_t keys, const ScoreMask& mask, int64_t query,
                               float* largest, float* total, float* factor) {
  const GroupMask<kMasked> seen(mask, query);
  const Floats hidden = splat(-__builtin_inff());
  Floats top[kGroup], sum[kGroup] = {};
  for (int g = 0; g < kGroup; ++g) top[g] = load(largest + query + g * kWidth, All{});
  for (int64_t key = 0; key < keys; ++key) {
    float* row = scores + key * kQueryBlock + query;
    for (int g = 0; g < kGroup; ++g) {
      const Floats score = seen.select(g, key, load(row + g * kWidth, All{}), hidden);
      if constexpr (kMasked) store(row + g * kWidth, score, All{});
      top[g] = score > top[g] ? score : top[g];
    }
  }
  for (int64_t key = 0; key < keys; ++key) {
    float* row = scores + key * kQueryBlock + query;
    for (int g = 0; g < kGroup; ++g) {
      const Floats weight = weight_of(load(row + g * kWidth, All{}) - top[g]);
      store(row + g * kWidth, weight, All{});
      sum[g] += weight;
    }
  }
  bool rescale = false;
  for (int g = 0; g < kGroup; ++g) {
    const int64_t q = query + g * kWidth;
    const Floats change = weight_of(load(largest + q, All{}) - top[g]);
    store(factor + q, change, All{});
    store(largest + q, top[g], All{});
    store(total + q, multiply_add(load(total + q, All{}), change, sum[g]), All{});
    for (int lane = 0; lane < kWidth; ++lane) rescale |= change[lane] != 1.0f;
  }
  return rescale;
}

inline bool softmax_step(float* scores, int64_t keys, const ScoreMask& mask, float* largest, float* total,
                         float* factor) {
  bool rescale = false;
  for (int64_t query = 0; query < kQueryBlock; query += kGroupQueries) {
    rescale |= mask.first ? softmax_step_group<true>(scores, keys, mask, query, largest, total, factor)
                          : softmax_step_group<false>(scores, keys, mask, query, largest, total, factor);
  }
  return rescale;
}

template <bool kMasked>
inline void softmax_slopes_group(float* scores, float* slopes, int64_t keys, const ScoreMask& mask,
                                 int64_t query, const float* log_sum_exp, const float* own) {
  const GroupMask<kMasked> seen(mask, query);
  Floats shift[kGroup], mean[kGroup];
  for (int g = 0; g < kGroup; ++g) {
    shift[g] = load(log_sum_exp + query + g * kWidth, All{});
    mean[g] = load(own + query + g * kWidth, All{});
  }
  for (int64_t key = 0; key < keys; ++key) {
    float* row = scores + key * kQueryBlock + query;
    float* slope_row = slopes + key * kQueryBlock + query;
    for (int g = 0; g < kGroup; ++g) {
      const Floats weight =
          seen.select(g, key, weight_of(load(row + g * kWidth, All{}) - shift[g]), Floats{});
      const Floats slope = weight * (load(slope_row + g * kWidth, All{}) - mean[g]);
      store(row + g * kWidth, weight, All{});
      store(slope_row + g * kWidth, seen.select(g, key, slope, Floats{}), All{});
    }
  }
}

inline void softmax_slopes(float* scores, float* slopes, int64_t keys, const ScoreMask& mask,
                           const float* log_sum_exp, const float* own) {
  for (int64_t query = 0; query < kQueryBlock; query += kGroupQueries) {
    if (mask.first) {
      softmax_slopes_group<true>(scores, slopes, keys, mask, query, log_sum_exp, own);
    } else {
      softmax_slopes_group<false>(scores, slopes, keys, mask, query, log_sum_exp, own);
    }
  }
}

inline void scale_rows(float* x, const float* factor, int64_t rows, int64_t columns) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = row * columns; i < (row + 1) * columns; i += kWidth) {
      store(x + i, load(x + i, All{}) * factor[row], All{});
    }
  }
}

inline void add(float* y, const float* x, int64_t count) {
  for_vectors(0, count,
              [&](int64_t i, auto lanes) { store(y + i, load(y + i, lanes) + load(x + i, lanes), lanes); });
}

inline void store_scaled(Ref y, const float* x, float scale, int64_t count) {
  with_type(y.dtype, [&](auto* type) {
    auto* to = elements<std::remove_pointer_t<decltype(type)>>(y);
    for_vectors(0, count, [&](int64_t i, auto lanes) { store(to + i, load(x + i, lanes) * scale, lanes); });
  });
}

inline float dot(ConstRef a, ConstRef b, int64_t count) {
  float sums[1];
  with_type(a.dtype, [&](auto* a_type) {
    with_type(b.dtype, [&](auto* b_type) {
      const auto* x = elements<std::remove_pointer_t<decltype(a_type)>>(a);
      const auto* y = elements<std::remove_pointer_t<decltype(b_type)>>(b);
      sum_vectors<1>(count, sums, [&](int64_t i, auto lanes, Floats* sum) {
        sum[0] = multiply_add(load(x + i, lanes), load(y + i, lanes), sum[0]);
      });
    });
  });
  return sums[0];
}

inline float largest(const float* x, int64_t count) {
  const float first = x[0];
  Floats top[4] = {splat(first), splat(first), splat(first), splat(first)};
  int64_t i = 0;
  for (; i + 4 * kWidth <= count; i += 4 * kWidth) {
    for (int set = 0; set < 4; ++set) {
      const Floats value = load(x + i + set * kWidth, All{});
      top[set] = value > top[set] ? value : top[set];
    }
  }
  float result = first;
  for (int set = 0; set < 4; ++set) {
    for (int lane = 0; lane < kWidth; ++lane) result = top[set][lane] > result ? top[set][lane] : result;
  }
  for (; i < count; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

inline double sum_exponentials(const float* x, float shift, int64_t count) {
  constexpr int64_t kBlock = 4096;
  double total = 0.0;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    float sums[1];
    const float* from = x + begin;
    sum_vectors<1>(count - begin < kBlock ? count - begin : kBlock, sums,
                   [&](int64_t i, auto lanes, Floats* sum) {
                     sum[0] += weight_of(load_or(from + i, -__builtin_inff(), lanes) - shift);
                   });
    total += sums[0];
  }
  return total;
}

inline void exponentials(Ref y, const float* x, float shift, int64_t count) {
  with_type(y.dtype, [&](auto* type) {
    auto* to = elements<std::remove_pointer_t<decltype(type)>>(y);
    for_vectors(0, count,
                [&](int64_t i, auto lanes) { store(to + i, weight_of(load(x + i, lanes) - shift), lanes); });
  });
}

constexpr TileTable kTileTable = {kTileRows,    kTileWidth,       kPanel,      pack, multiply,     finish,
                                  softmax_step, softmax_slopes,   scale_rows,  add,  store_scaled, dot,
                                  largest,      sum_exponentials, exponentials};

}  // namespace trainer::TRAINER_ISA
