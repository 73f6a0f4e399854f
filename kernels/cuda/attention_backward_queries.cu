// dq: a block of threads takes a block of queries of one head through the keys that any of them sees.
#include "cuda/attention_arguments.h"
#include "cuda/attention_tiles.h"

namespace trainer::TRAINER_DEVICE_NAMESPACE {
namespace {

// A warp has 16 kM queries; kKeys of a step.
template <class T, int kWidth>
struct QueriesShape;
template <>
struct QueriesShape<Bf16, 32> {
  static constexpr int kM = 2, kWarps = 4, kKeys = 32;
};
template <>
struct QueriesShape<Bf16, 64> : QueriesShape<Bf16, 32> {};
template <>
struct QueriesShape<Bf16, 128> {
  static constexpr int kM = 1, kWarps = 4, kKeys = 32;
};
template <>
struct QueriesShape<float, 32> {
  static constexpr int kM = 1, kWarps = 4, kKeys = 32;
};
template <>
struct QueriesShape<float, 64> : QueriesShape<float, 32> {};
template <>
struct QueriesShape<float, 128> {
  static constexpr int kM = 1, kWarps = 2, kKeys = 16;
};

template <class T, int kWidth>
struct QueriesMemory : QueriesShape<T, kWidth> {
  using Shape = QueriesShape<T, kWidth>;
  using Tile = SharedTile<T, kWidth>;
  using Weights = WeightTile<T, 16 * Shape::kM, Shape::kKeys>;
  static constexpr int kQueries = 16 * Shape::kM * Shape::kWarps, kThreads = kWarpThreads * Shape::kWarps;
  static constexpr int kElements =
      2 * Tile::elements(kQueries) + 4 * Tile::elements(Shape::kKeys) + Shape::kWarps * Weights::kElements;
};

template <class T, int kWidth>
__global__ void __launch_bounds__(QueriesMemory<T, kWidth>::kThreads)
    attention_backward_queries_kernel(AttentionArguments<T> a) {
  using Memory = QueriesMemory<T, kWidth>;
  using Tile = typename Memory::Tile;
  constexpr int kM = Memory::kM, kKeys = Memory::kKeys, kN = kKeys / 8, kD = kWidth / 8;
  constexpr int kThreads = Memory::kThreads, kStride = Tile::kStride;
  SharedArena arena;
  const Tile queries = {arena.take<T>(Tile::elements(Memory::kQueries))};
  const Tile out_gradients = {arena.take<T>(Tile::elements(Memory::kQueries))};
  const Tile keys = {arena.take<T>(Tile::elements(2 * kKeys))};  // of this step and the next
  const Tile values = {arena.take<T>(Tile::elements(2 * kKeys))};
  const SharedSpan<T> places = arena.take<T>(Memory::kWarps * Memory::Weights::kElements);

  const int batch = static_cast<int>(blockIdx.z), head = static_cast<int>(blockIdx.y);
  const int kv_head = head / (a.heads / a.kv_heads);
  const int first_query =
      static_cast<int>(gridDim.x - 1 - blockIdx.x) * Memory::kQueries;  // the longest first
  const int warp_query = first_query + 16 * kM * warp_index();
  const KeyRange block_first = a.visible(batch, first_query);
  const KeyRange block_last = a.visible(batch, first_query + Memory::kQueries - 1);
  const KeyRange warp_first = a.visible(batch, warp_query);
  const KeyRange warp_last = a.visible(batch, warp_query + 16 * kM - 1);
  KeyRange rows[kM][2];
  float statistic[kM][2],
      delta[kM][2];  // of rows group and group + 8: log2 of the sum of exponentials; dout * out
  TRAINER_UNROLL
  for (int m = 0; m < kM; ++m) {
    TRAINER_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int query = warp_query + 16 * m + fragment_row(2 * half);
      rows[m][half] = a.visible(batch, query);
      const int64_t at = a.statistic_at(batch, min(query, a.query_length - 1), head);
      statistic[m][half] = a.log_sum_exp[at] * kLog2E;
      delta[m][half] = a.delta[at];
    }
  }

  CopyQueue queue;
  const auto begin_copy = [&](int step) {
    const int place = step % 2 * kKeys;
    copy_tile<kKeys, kWidth, kStride, kThreads>(queue, keys.from_row(place).data,
                                                a.keys(batch, step * kKeys, kv_head));
    copy_tile<kKeys, kWidth, kStride, kThreads>(queue, values.from_row(place).data,
                                                a.values(batch, step * kKeys, kv_head));
  };
  copy_tile<Memory::kQueries, kWidth, kStride, kThreads>(queue, queries.data,
                                                         a.queries(batch, first_query, head));
  copy_tile<Memory::kQueries, kWidth, kStride, kThreads>(queue, out_gradients.data,
                                                         a.out_gradients(batch, first_query, head));
  const int begin = block_first.first / kKeys, end = (block_last.last + kKeys - 1) / kKeys;
  begin_copy(begin);
  queue.commit();

  const Tile own_queries = queries.from_row(16 * kM * warp_index());
  const Tile own_gradients = out_gradients.from_row(16 * kM * warp_index());
  const SharedSpan<T> own_place = places + warp_index() * Memory::Weights::kElements;
  const float factor = a.scale * kLog2E;
  FragmentC sums[kM][kD];
  clear(sums);
  for (int step = begin; step < end; ++step) {
    queue.wait<0>();
    __syncthreads();  // everyone's copies of this step are there, and nobody reads the place of the next
    if (step + 1 < end) begin_copy(step + 1);
    queue.commit();
    const int first_key = step * kKeys;
    if (warp_query >= a.query_length || first_key >= warp_last.last || first_key + kKeys <= warp_first.first)
      continue;
    const int place = step % 2 * kKeys;
    FragmentC scores[kM][kN], slopes[kM][kN];
    clear(scores);
    multiply_rows(scores, own_queries, keys.from_row(place));
    clear(slopes);
    multiply_rows(slopes, own_gradients, values.from_row(place));
    const bool some_hidden = first_key < warp_last.first || first_key + kKeys > warp_first.last;
    TRAINER_UNROLL
    for (int m = 0; m < kM; ++m) {
      TRAINER_UNROLL
      for (int n = 0; n < kN; ++n) {
        TRAINER_UNROLL
        for (int value = 0; value < 4; ++value) {
          const int half = value / 2;
          float weight = fast_exp2(multiply_add(scores[m][n].values[value], factor, -statistic[m][half]));
          if (some_hidden) {
            const int key = first_key + 8 * n + fragment_column(value);
            if (key < rows[m][half].first || key >= rows[m][half].last) weight = 0.0f;
          }
          slopes[m][n].values[value] = weight * (slopes[m][n].values[value] - delta[m][half]);
        }
      }
    }
    multiply_weights(sums, slopes, keys.from_row(place), own_place);
  }
  queue.wait<0>();

  TRAINER_UNROLL
  for (int m = 0; m < kM; ++m) {
    TRAINER_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int query = warp_query + 16 * m + fragment_row(2 * half);
      if (query >= a.query_length) continue;
      T* row = a.result + a.query_at(batch, query, head);
      TRAINER_UNROLL
      for (int d = 0; d < kD; ++d) {
        store_pair(row, 8 * d + fragment_column(0), a.head_dim, a.vectors,
                   sums[m][d].values[2 * half] * a.scale, sums[m][d].values[2 * half + 1] * a.scale);
      }
    }
  }
}

template <class T>
void launch_backward_queries(const AttentionArguments<T>& a, int64_t batch, Stream stream) {
  with_head_width(a.head_dim, [&](auto width) {
    using Memory = QueriesMemory<T, decltype(width)::value>;
    const dim3 grid(divide_up(a.query_length, Memory::kQueries), a.heads, batch);
    launch(attention_backward_queries_kernel<T, decltype(width)::value>, grid, Memory::kThreads,
           Memory::kElements * sizeof(T), stream, a);
  });
}

}  // namespace

void run_attention_backward_queries(const AttentionArguments<float>& a, int64_t batch, Stream stream) {
  launch_backward_queries(a, batch, stream);
}
void run_attention_backward_queries(const AttentionArguments<Bf16>& a, int64_t batch, Stream stream) {
  launch_backward_queries(a, batch, stream);
}

}  // namespace trainer::TRAINER_DEVICE_NAMESPACE
