// dq: weights are recomputed from log_sum_exp, and slopes of the scores from them.
#include "cuda/attention_queries.h"

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
  using Block = QueryBlock<T, kWidth, Shape::kM, Shape::kWarps, Shape::kKeys>;
  using Tile = typename Block::Tile;
  using Weights = WeightTile<T, 16 * Shape::kM, Shape::kKeys>;
  static constexpr int kElements = 2 * Tile::elements(Block::kQueries) + 4 * Tile::elements(Shape::kKeys) +
                                   Shape::kWarps * Weights::kElements;
};

template <class T, int kWidth>
__global__ void __launch_bounds__(QueriesMemory<T, kWidth>::Block::kThreads)
    attention_backward_queries_kernel(AttentionArguments<T> a) {
  using Memory = QueriesMemory<T, kWidth>;
  using Block = typename Memory::Block;
  using Tile = typename Memory::Tile;
  constexpr int kM = Memory::kM, kKeys = Memory::kKeys, kN = kKeys / 8, kD = kWidth / 8;
  SharedArena arena;
  const Tile queries = {arena.take<T>(Tile::elements(Block::kQueries))};
  const Tile out_gradients = {arena.take<T>(Tile::elements(Block::kQueries))};
  const Tile keys = {arena.take<T>(Tile::elements(2 * kKeys))};  // of this step and the next
  const Tile values = {arena.take<T>(Tile::elements(2 * kKeys))};
  const SharedSpan<T> places = arena.take<T>(Memory::kWarps * Memory::Weights::kElements);
  const Tile own_queries = queries.from_row(16 * kM * warp_index());
  const Tile own_gradients = out_gradients.from_row(16 * kM * warp_index());
  const SharedSpan<T> own_place = places + warp_index() * Memory::Weights::kElements;

  const Block block(a);
  CopyQueue queue;
  copy_tile<Block::kQueries, kWidth, Tile::kStride, Block::kThreads>(
      queue, queries.data, a.queries(block.batch, block.first_query, block.head));
  copy_tile<Block::kQueries, kWidth, Tile::kStride, Block::kThreads>(
      queue, out_gradients.data, a.out_gradients(block.batch, block.first_query, block.head));
  block.begin_copy(queue, a, keys, values, block.begin);
  queue.commit();

  float statistic[kM][2], delta[kM][2];  // of the lane's rows: log2 of the sum of exponentials; dout * out
  TRAINER_UNROLL
  for (int m = 0; m < kM; ++m) {
    TRAINER_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int64_t at =
          a.statistic_at(block.batch, min(block.query(m, half), a.query_length - 1), block.head);
      statistic[m][half] = a.log_sum_exp[at] * kLog2E;
      delta[m][half] = a.delta[at];
    }
  }
  const float factor = a.scale * kLog2E;
  FragmentC sums[kM][kD];
  clear(sums);
  for (int step = block.begin; step < block.end; ++step) {
    queue.wait<0>();
    __syncthreads();  // everyone's copies of this step are there, and nobody reads the place of the next
    if (step + 1 < block.end) block.begin_copy(queue, a, keys, values, step + 1);
    queue.commit();
    const int first_key = step * kKeys;
    if (block.sees_nothing(a, first_key)) continue;
    FragmentC scores[kM][kN], slopes[kM][kN];
    clear(scores);
    multiply_rows(scores, own_queries, keys.from_row(Block::half(step)));
    clear(slopes);
    multiply_rows(slopes, own_gradients, values.from_row(Block::half(step)));
    const bool some_hidden = block.some_hidden(first_key);
    TRAINER_UNROLL
    for (int m = 0; m < kM; ++m) {
      TRAINER_UNROLL
      for (int n = 0; n < kN; ++n) {
        TRAINER_UNROLL
        for (int value = 0; value < 4; ++value) {
          const int half = value / 2;
          float weight = fast_exp2(multiply_add(scores[m][n].values[value], factor, -statistic[m][half]));
          if (some_hidden && block.hidden(m, value, first_key + 8 * n)) weight = 0.0f;
          slopes[m][n].values[value] = weight * (slopes[m][n].values[value] - delta[m][half]);
        }
      }
    }
    multiply_weights(sums, slopes, keys.from_row(Block::half(step)), own_place);
  }
  queue.wait<0>();

  TRAINER_UNROLL
  for (int m = 0; m < kM; ++m) {
    TRAINER_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int query = block.query(m, half);
      if (query >= a.query_length) continue;
      T* row = a.result + a.query_at(block.batch, query, block.head);
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
    const dim3 grid(divide_up(a.query_length, Memory::Block::kQueries), a.heads, batch);
    launch(attention_backward_queries_kernel<T, decltype(width)::value>, grid, Memory::Block::kThreads,
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
