// dk and dv: a block of threads takes a block of keys of one key/value head through the queries, of all heads
// that share it, that see any of them. Scores are held transposed, [keys, queries], so that each warp has its
// own keys and the weights are in the form that the next products take.
#include <climits>

#include "cuda/attention_arguments.h"
#include "cuda/attention_tiles.h"

namespace trainer::TRAINER_DEVICE_NAMESPACE {
namespace {

// A warp has 16 kM keys; kQueries of a step.
template <class T, int kWidth>
struct KeysShape;
template <>
struct KeysShape<Bf16, 32> {
  static constexpr int kM = 2, kWarps = 4, kQueries = 32;
};
template <>
struct KeysShape<Bf16, 64> : KeysShape<Bf16, 32> {};
template <>
struct KeysShape<Bf16, 128> {
  static constexpr int kM = 1, kWarps = 4, kQueries = 32;
};
template <>
struct KeysShape<float, 32> {
  static constexpr int kM = 1, kWarps = 4, kQueries = 32;
};
template <>
struct KeysShape<float, 64> : KeysShape<float, 32> {};
template <>
struct KeysShape<float, 128> {
  static constexpr int kM = 1, kWarps = 2, kQueries = 16;
};

// What is known of a query beside its row.
struct QueryFacts {
  float statistic;  // log2 of the sum of exponentials
  float delta;      // dout * out
  int first_key;    // that it sees; behind the last query: none
  int unused;       // a whole of 16 bytes
};

template <class T, int kWidth>
struct KeysMemory : KeysShape<T, kWidth> {
  using Shape = KeysShape<T, kWidth>;
  using Tile = SharedTile<T, kWidth>;
  using Weights = WeightTile<T, 16 * Shape::kM, Shape::kQueries>;
  static constexpr int kKeys = 16 * Shape::kM * Shape::kWarps, kThreads = kWarpThreads * Shape::kWarps;
  static constexpr size_t kBytes =
      (2 * Tile::elements(kKeys) + 4 * Tile::elements(Shape::kQueries) + Shape::kWarps * Weights::kElements) *
          sizeof(T) +
      2 * Shape::kQueries * sizeof(QueryFacts);
};

// The first of the blocks of queries behind `begin` whose queries no longer see `last_key`. What a query sees
// first grows with the query.
template <int kQueries, class T>
__device__ __forceinline__ int end_of_queries(const AttentionArguments<T>& a, int64_t batch, int begin,
                                              int last_key) {
  int end = (a.query_length + kQueries - 1) / kQueries;
  if (!a.document_first) return end;
  while (begin < end) {
    const int middle = (begin + end) / 2;
    if (a.visible(batch, middle * kQueries).first <= last_key) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return end;
}

template <class T>
__device__ __forceinline__ void add_pair(float* row, int column, const AttentionArguments<T>& a, float first,
                                         float second) {
  if (a.vectors) {
    if (column >= a.head_dim) return;
    float2* to = reinterpret_cast<float2*>(row + column);
    const float2 before = *to;
    *to = {before.x + first, before.y + second};
  } else {
    if (column < a.head_dim) row[column] += first;
    if (column + 1 < a.head_dim) row[column + 1] += second;
  }
}

template <class T, int kWidth>
__global__ void __launch_bounds__(KeysMemory<T, kWidth>::kThreads)
    attention_backward_keys_kernel(AttentionArguments<T> a) {
  using Memory = KeysMemory<T, kWidth>;
  using Tile = typename Memory::Tile;
  constexpr int kM = Memory::kM, kQueries = Memory::kQueries, kN = kQueries / 8, kD = kWidth / 8;
  constexpr int kThreads = Memory::kThreads, kStride = Tile::kStride;
  SharedArena arena;
  const Tile keys = {arena.take<T>(Tile::elements(Memory::kKeys))};
  const Tile values = {arena.take<T>(Tile::elements(Memory::kKeys))};
  const Tile queries = {arena.take<T>(Tile::elements(2 * kQueries))};  // of this step and the next
  const Tile out_gradients = {arena.take<T>(Tile::elements(2 * kQueries))};
  const SharedSpan<T> places = arena.take<T>(Memory::kWarps * Memory::Weights::kElements);
  const SharedSpan<QueryFacts> facts = arena.take<QueryFacts>(2 * kQueries);

  const int batch = static_cast<int>(blockIdx.z), kv_head = static_cast<int>(blockIdx.y);
  const int group = a.heads / a.kv_heads;
  const int first_key = static_cast<int>(blockIdx.x) * Memory::kKeys;  // the longest first
  const int warp_key = first_key + 16 * kM * warp_index(), warp_last_key = warp_key + 16 * kM - 1;
  const int begin = max(first_key - a.query_offset, 0) / kQueries;
  const int end = end_of_queries<kQueries>(a, batch, begin, first_key + Memory::kKeys - 1);
  if (begin >= end) return;

  CopyQueue queue;
  const auto begin_copy = [&](int place, int head, int block) {
    const int query = block * kQueries;
    copy_tile<kQueries, kWidth, kStride, kThreads>(queue, queries.from_row(place).data,
                                                   a.queries(batch, query, head));
    copy_tile<kQueries, kWidth, kStride, kThreads>(queue, out_gradients.from_row(place).data,
                                                   a.out_gradients(batch, query, head));
    const int own = static_cast<int>(threadIdx.x);
    if (own < kQueries) {
      const int64_t at = a.statistic_at(batch, min(query + own, a.query_length - 1), head);
      const int first = query + own < a.query_length ? a.visible(batch, query + own).first : INT_MAX;
      facts[place + own] = {a.log_sum_exp[at] * kLog2E, a.delta[at], first, 0};
    }
  };
  copy_tile<Memory::kKeys, kWidth, kStride, kThreads>(queue, keys.data, a.keys(batch, first_key, kv_head));
  copy_tile<Memory::kKeys, kWidth, kStride, kThreads>(queue, values.data,
                                                      a.values(batch, first_key, kv_head));
  begin_copy(0, kv_head * group, begin);
  queue.commit();

  const Tile own_keys = keys.from_row(16 * kM * warp_index()),
             own_values = values.from_row(16 * kM * warp_index());
  const SharedSpan<T> own_place = places + warp_index() * Memory::Weights::kElements;
  const float factor = a.scale * kLog2E;
  FragmentC key_sums[kM][kD], value_sums[kM][kD];
  clear(key_sums);
  clear(value_sums);
  int head = kv_head * group, block = begin, place = 0;  // of the step
  for (bool more = true; more; place = kQueries - place) {
    queue.wait<0>();
    __syncthreads();  // everyone's copies of this step are there, and nobody reads the place of the next
    const int first_own = a.query_offset + block * kQueries;  // the position of the first query
    if (++block == end) {
      block = begin;
      ++head;
    }
    more = head < (kv_head + 1) * group;
    if (more) begin_copy(kQueries - place, head, block);
    queue.commit();
    const QueryFacts first_facts = facts[place], last_facts = facts[place + kQueries - 1];
    if (first_own + kQueries <= warp_key || first_facts.first_key > warp_last_key) continue;
    const Tile step_queries = queries.from_row(place), step_gradients = out_gradients.from_row(place);
    FragmentC weights[kM][kN];
    clear(weights);
    multiply_rows(weights, own_keys, step_queries);
    const bool some_hidden = first_own < warp_last_key || last_facts.first_key > warp_key;
    TRAINER_UNROLL
    for (int n = 0; n < kN; ++n) {
      TRAINER_UNROLL
      for (int side = 0; side < 2; ++side) {
        const int column = 8 * n + fragment_column(side);
        const QueryFacts query = facts[place + column];
        TRAINER_UNROLL
        for (int m = 0; m < kM; ++m) {
          TRAINER_UNROLL
          for (int value = side; value < 4; value += 2) {
            float weight = fast_exp2(multiply_add(weights[m][n].values[value], factor, -query.statistic));
            if (some_hidden) {
              const int key = warp_key + 16 * m + fragment_row(value);
              if (key < query.first_key || key > first_own + column) weight = 0.0f;
            }
            weights[m][n].values[value] = weight;
          }
        }
      }
    }
    multiply_weights(value_sums, weights, step_gradients, own_place);
    FragmentC slopes[kM][kN];
    clear(slopes);
    multiply_rows(slopes, own_values, step_gradients);
    TRAINER_UNROLL
    for (int n = 0; n < kN; ++n) {
      TRAINER_UNROLL
      for (int side = 0; side < 2; ++side) {
        const QueryFacts query = facts[place + 8 * n + fragment_column(side)];
        TRAINER_UNROLL
        for (int m = 0; m < kM; ++m) {
          TRAINER_UNROLL
          for (int value = side; value < 4; value += 2) {
            slopes[m][n].values[value] =
                weights[m][n].values[value] * (slopes[m][n].values[value] - query.delta);
          }
        }
      }
    }
    multiply_weights(key_sums, slopes, step_queries, own_place);
  }
  queue.wait<0>();

  TRAINER_UNROLL
  for (int m = 0; m < kM; ++m) {
    TRAINER_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int key = warp_key + 16 * m + fragment_row(2 * half);
      if (key >= a.key_length) continue;
      const int64_t at = a.key_gradient_at(batch, key, kv_head);
      TRAINER_UNROLL
      for (int d = 0; d < kD; ++d) {
        const int column = 8 * d + fragment_column(0);
        add_pair(a.dk + at, column, a, key_sums[m][d].values[2 * half] * a.scale,
                 key_sums[m][d].values[2 * half + 1] * a.scale);
        add_pair(a.dv + at, column, a, value_sums[m][d].values[2 * half],
                 value_sums[m][d].values[2 * half + 1]);
      }
    }
  }
}

template <class T>
void launch_backward_keys(const AttentionArguments<T>& a, int64_t batch, Stream stream) {
  with_head_width(a.head_dim, [&](auto width) {
    using Memory = KeysMemory<T, decltype(width)::value>;
    const dim3 grid(divide_up(a.key_length, Memory::kKeys), a.kv_heads, batch);
    launch(attention_backward_keys_kernel<T, decltype(width)::value>, grid, Memory::kThreads, Memory::kBytes,
           stream, a);
  });
}

}  // namespace

void run_attention_backward_keys(const AttentionArguments<float>& a, int64_t batch, Stream stream) {
  launch_backward_keys(a, batch, stream);
}
void run_attention_backward_keys(const AttentionArguments<Bf16>& a, int64_t batch, Stream stream) {
  launch_backward_keys(a, batch, stream);
}

}  // namespace trainer::TRAINER_DEVICE_NAMESPACE
