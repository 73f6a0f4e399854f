// The loops of attention and the classifier around their products (tile_table.h), of the instruction level
// being compiled.
#pragma once

#if TRAINER_AMX
#include "cpu/tile_amx.h"
#else
#include "cpu/tile_product.h"
#endif

namespace trainer::TRAINER_ISA {

// The same (tile_finish.h) for weights of attention. Those that will be rounded to bf16 need no more than
// a relative error of 3e-6.
inline Floats attention_weight(Floats x) {
#if TRAINER_BF16
  constexpr float kRound = 0x1.8p23f, kLog2E = 0x1.715476p0f, kLn2 = 0x1.62e43p-1f;
  const __mmask16 normal = _mm512_cmp_ps_mask(x, broadcast(-87.0f), _CMP_NLT_UQ);
  const Floats shifted = multiply_add(x, broadcast(kLog2E), broadcast(kRound));
  const Floats n = shifted - kRound;
  const Floats r = multiply_add(n, broadcast(-kLn2), x);
  Floats p = broadcast(0.041513856f);
  p = multiply_add(p, r, broadcast(0.16787476f));
  p = multiply_add(p, r, broadcast(0.50003014f));
  p = multiply_add(p, r, broadcast(0.99996683f));
  p = multiply_add(p, r, broadcast(1.0f));
  return _mm512_maskz_scalef_ps(normal, p, n);
#else
  return weight_of(x);
#endif
}

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
      unrolled<kGroup>([&](auto g) {
        first[g] = load_integers(mask.first + query + g * kWidth);
        last[g] = load_integers(mask.last + query + g * kWidth);
      });
    }
  }
  Floats select(int g, int64_t key, Floats seen, Floats hidden) const {
    if constexpr (!kMasked) return seen;
    const Integers position = static_cast<int32_t>(key) - Integers{};
    return ((position >= first[g]) & (position < last[g])) ? seen : hidden;
  }
};

// A group of weights or slopes of kSlotElements keys, from `key` on, as operands of products.
using GroupValues = Floats[kSlotElements][kGroup];

#if TRAINER_BF16

// The first `kKeys` of them.
template <int kKeys>
inline void store_rows(const ScoreOperand& to, int64_t key, int64_t query, const GroupValues& values) {
  unrolled<kKeys>([&](auto s) {
    unrolled<kGroup / 2>([&](auto half) {
      constexpr int kFirst = 2 * decltype(half)::value;
      const __m512i both = round_pair(values[s][kFirst], values[s][kFirst + 1]);
      store_raw(to.rows + ((key + s) * kQueryBlock + query + kFirst * kWidth) / kSlotElements, both, All{});
    });
  });
}

inline void store_columns(const ScoreOperand& to, int64_t key, int64_t query, const GroupValues& values) {
  static constexpr uint16_t kInterleaved[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i interleaved = _mm512_loadu_si512(kInterleaved);
  unrolled<kGroup>([&](auto g) {
    const __m512i both = round_pair(values[0][g], values[1][g]);
    store_raw(to.columns + key / kSlotElements * kQueryBlock + query + g * kWidth,
              _mm512_permutexvar_epi16(interleaved, both), All{});
  });
}

#else

inline void store_group(float* to, int64_t key, int64_t query, const GroupValues& values) {
  unrolled<kGroup>([&](auto g) { store(to + key * kQueryBlock + query + g * kWidth, values[0][g], All{}); });
}
template <int kKeys>
inline void store_rows(const ScoreOperand& to, int64_t key, int64_t query, const GroupValues& values) {
  store_group(to.rows, key, query, values);
}
inline void store_columns(const ScoreOperand& to, int64_t key, int64_t query, const GroupValues& values) {
  store_group(to.columns, key, query, values);
}

#endif

// The slots after the last key, up to a multiple that products can take.
inline void clear_columns(const ScoreOperand& to, int64_t keys, int64_t query) {
  constexpr int64_t kKeys = kSlotElements * kSlotMultiple;
  for (int64_t slot = (keys + kSlotElements - 1) / kSlotElements;
       slot < (keys + kKeys - 1) / kKeys * kSlotMultiple; ++slot) {
    for (int g = 0; g < kGroup; ++g)
      store(to.columns + slot * kQueryBlock + query + g * kWidth, Floats{}, All{});
  }
}

// step(key, kKeys) for the slots of `keys` keys: kKeys of a slot's keys there are, all but in the last slot.
template <class Step>
inline void for_slots(int64_t keys, const Step& step) {
  int64_t key = 0;
  for (; key + kSlotElements <= keys; key += kSlotElements)
    step(key, std::integral_constant<int, kSlotElements>{});
  if constexpr (kSlotElements > 1) {
    if (key < keys) step(key, std::integral_constant<int, 1>{});
  }
}

template <bool kMasked>
__attribute__((flatten)) inline bool softmax_step_group(float* scores, int64_t keys, const ScoreMask& mask,
                                                        int64_t query, float scale, float* largest,
                                                        float* total, float* factor,
                                                        const ScoreOperand& weights) {
  const GroupMask<kMasked> seen(mask, query);
  const Floats hidden = broadcast(-__builtin_inff()), scales = broadcast(scale);
  Floats top[kGroup], sum[kGroup] = {};
  unrolled<kGroup>([&](auto g) { top[g] = broadcast(kNoScore); });
  for (int64_t key = 0; key < keys; ++key) {
    float* row = scores + key * kQueryBlock + query;
    unrolled<kGroup>([&](auto g) {
      const Floats score = seen.select(g, key, load(row + g * kWidth, All{}), hidden);
      if constexpr (kMasked) store(row + g * kWidth, score, All{});
      top[g] = score > top[g] ? score : top[g];
    });
  }
  unrolled<kGroup>([&](auto g) {
    const Floats before = load(largest + query + g * kWidth, All{});
    top[g] *= scale;
    top[g] = before > top[g] ? before : top[g];
  });
  for_slots(keys, [&]<int kKeys>(int64_t key, std::integral_constant<int, kKeys>) {
    GroupValues weight;
    unrolled<kSlotElements>([&](auto s) {
      const float* row = scores + (key + s) * kQueryBlock + query;
      unrolled<kGroup>([&](auto g) {
        weight[s][g] = Floats{};
        if constexpr (decltype(s)::value < kKeys) {
          weight[s][g] = attention_weight(multiply_add(load(row + g * kWidth, All{}), scales, -top[g]));
          sum[g] += weight[s][g];
        }
      });
    });
    store_columns(weights, key, query, weight);
  });
  clear_columns(weights, keys, query);
  Words differs = {};
  unrolled<kGroup>([&](auto g) {
    const int64_t q = query + g * kWidth;
    const Floats change = weight_of(load(largest + q, All{}) - top[g]);
    store(factor + q, change, All{});
    store(largest + q, top[g], All{});
    store(total + q, multiply_add(load(total + q, All{}), change, sum[g]), All{});
    differs |= as_words(change) ^ as_words(broadcast(1.0f));
  });
  bool rescale = false;
  for (int lane = 0; lane < kWidth; ++lane) rescale |= differs[lane] != 0;
  return rescale;
}

inline bool softmax_step(float* scores, int64_t keys, const ScoreMask& mask, float scale, float* largest,
                         float* total, float* factor, const ScoreOperand& weights) {
  bool rescale = false;
  for (int64_t query = 0; query < kQueryBlock; query += kGroupQueries) {
    const auto step = mask.first ? softmax_step_group<true> : softmax_step_group<false>;
    rescale |= step(scores, keys, mask, query, scale, largest, total, factor, weights);
  }
  return rescale;
}

template <bool kMasked>
__attribute__((flatten)) inline void softmax_slopes_group(const float* scores, const float* slopes,
                                                          int64_t keys, const ScoreMask& mask, int64_t query,
                                                          float scale, const float* log_sum_exp,
                                                          const float* own, const ScoreOperand& weights,
                                                          const ScoreOperand& changes) {
  const GroupMask<kMasked> seen(mask, query);
  const Floats scales = broadcast(scale);
  Floats shift[kGroup], mean[kGroup];
  unrolled<kGroup>([&](auto g) {
    shift[g] = -load(log_sum_exp + query + g * kWidth, All{});
    mean[g] = load(own + query + g * kWidth, All{});
  });
  for_slots(keys, [&]<int kKeys>(int64_t key, std::integral_constant<int, kKeys>) {
    GroupValues weight, change;
    unrolled<kSlotElements>([&](auto s) {
      const float* row = scores + (key + s) * kQueryBlock + query;
      const float* slope_row = slopes + (key + s) * kQueryBlock + query;
      unrolled<kGroup>([&](auto g) {
        weight[s][g] = change[s][g] = Floats{};
        if constexpr (decltype(s)::value < kKeys) {
          const Floats score = multiply_add(load(row + g * kWidth, All{}), scales, shift[g]);
          weight[s][g] = seen.select(g, key + s, attention_weight(score), Floats{});
          const Floats slope = weight[s][g] * (load(slope_row + g * kWidth, All{}) - mean[g]);
          change[s][g] = seen.select(g, key + s, slope, Floats{});
        }
      });
    });
    store_rows<kKeys>(weights, key, query, weight);
    store_rows<kKeys>(changes, key, query, change);
    if constexpr (kSlotElements > 1)
      store_columns(changes, key, query, change);  // otherwise rows are columns
  });
  clear_columns(changes, keys, query);
}

inline void softmax_slopes(const float* scores, const float* slopes, int64_t keys, const ScoreMask& mask,
                           float scale, const float* log_sum_exp, const float* own,
                           const ScoreOperand& weights, const ScoreOperand& changes) {
  for (int64_t query = 0; query < kQueryBlock; query += kGroupQueries) {
    const auto group = mask.first ? softmax_slopes_group<true> : softmax_slopes_group<false>;
    group(scores, slopes, keys, mask, query, scale, log_sum_exp, own, weights, changes);
  }
}

inline void scale_columns(float* x, const float* factor, int64_t rows) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t q = 0; q < kQueryBlock; q += kWidth) {
      float* at = x + row * kQueryBlock + q;
      store(at, load(at, All{}) * load(factor + q, All{}), All{});
    }
  }
}

inline void store_transposed(Ref y, int64_t y_stride, const float* x, const float* factor, int64_t rows,
                             int64_t columns) {
  with_type(y.dtype, [&](auto* type) {
    auto* to = elements<std::remove_pointer_t<decltype(type)>>(y);
    for (int64_t q = 0; q < columns; q += kWidth) {
      const Floats scale = load(factor + q, All{});
      for_vectors(0, rows, [&](int64_t row, auto lanes) {
        Floats block[kWidth];
        unrolled<kWidth>([&](auto i) {
          block[i] = row + i < rows ? load(x + (row + i) * kQueryBlock + q, All{}) * scale : Floats{};
        });
        transpose(block);
        unrolled<kWidth>([&](auto i) {
          if (q + i < columns) store(to + (q + i) * y_stride + row, block[i], lanes);
        });
      });
    }
  });
}

inline void add_scaled(float* y, const float* x, float scale, int64_t count) {
  for_vectors(0, count, [&](int64_t i, auto lanes) {
    store(y + i, multiply_add(load(x + i, lanes), broadcast(scale), load(y + i, lanes)), lanes);
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
  Floats top[4] = {broadcast(first), broadcast(first), broadcast(first), broadcast(first)};
  int64_t i = 0;
  for (; i + 4 * kWidth <= count; i += 4 * kWidth) {
    unrolled<4>([&](auto set) {
      const Floats value = load(x + i + set * kWidth, All{});
      top[set] = value > top[set] ? value : top[set];
    });
  }
  float result = first;
  unrolled<4>([&](auto set) {
    for (int lane = 0; lane < kWidth; ++lane) result = top[set][lane] > result ? top[set][lane] : result;
  });
  for (; i < count; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

constexpr TileTable kTileTable = {.tile_rows = kTileRows,
                                  .tile_width = kTileWidth,
                                  .panel = kPanel,
                                  .slot_elements = kSlotElements,
                                  .slot_multiple = kSlotMultiple,
                                  .any_rows = kAnyRows,
                                  .even = kEven,
                                  .task_bytes = kTaskBytes,
                                  .begin = kBegin,
                                  .end = kEnd,
                                  .pack_a = pack_a,
                                  .pack_b = pack_b,
                                  .multiply = multiply,
                                  .multiply_finish = multiply_finish,
                                  .softmax_step = softmax_step,
                                  .softmax_slopes = softmax_slopes,
                                  .scale_columns = scale_columns,
                                  .store_transposed = store_transposed,
                                  .add_scaled = add_scaled,
                                  .dot = dot,
                                  .join_panels = join_panels,
                                  .largest = largest,
                                  .scale_panels = scale_panels};

}  // namespace trainer::TRAINER_ISA
