// Forward: each warp keeps a running largest score and sum for each of its queries (online softmax).
#include "cuda/attention_queries.h"

namespace trainer::TRAINER_DEVICE_NAMESPACE {
namespace {

// A warp has 16 kM queries; kKeys of a step.
template <class T, int kWidth>
struct ForwardShape;
template <>
struct ForwardShape<Bf16, 32> {
  static constexpr int kM = 2, kWarps = 4, kKeys = 64;
};
template <>
struct ForwardShape<Bf16, 64> : ForwardShape<Bf16, 32> {};
template <>
struct ForwardShape<Bf16, 128> {
  static constexpr int kM = 2, kWarps = 4, kKeys = 32;
};
template <>
struct ForwardShape<float, 32> {
  static constexpr int kM = 1, kWarps = 4, kKeys = 32;
};
template <>
struct ForwardShape<float, 64> : ForwardShape<float, 32> {};
template <>
struct ForwardShape<float, 128> {
  static constexpr int kM = 1, kWarps = 4, kKeys = 16;
};

template <class T, int kWidth>
struct ForwardMemory : ForwardShape<T, kWidth> {
  using Shape = ForwardShape<T, kWidth>;
  using Block = QueryBlock<T, kWidth, Shape::kM, Shape::kWarps, Shape::kKeys>;
  using Tile = typename Block::Tile;
  using Weights = WeightTile<T, 16 * Shape::kM, Shape::kKeys>;
  static constexpr int kElements =
      Tile::elements(Block::kQueries) + 4 * Tile::elements(Shape::kKeys) + Shape::kWarps * Weights::kElements;
};

// Turns scores into weights below the largest score of each row so far; what was summed before shrinks to
// match. `largest` and `total` are of rows group and group + 8 of each m; a lane's total is of its own
// columns.
template <int kM, int kN, int kD>
__device__ __forceinline__ void online_softmax(FragmentC (&scores)[kM][kN], FragmentC (&sums)[kM][kD],
                                               float (&largest)[kM][2], float (&total)[kM][2], float factor) {
  float shrink[kM][2];
  bool any_shrinks = false;
  TRAINER_UNROLL
  for (int m = 0; m < kM; ++m) {
    TRAINER_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float before = largest[m][half];
      float now = before;
      TRAINER_UNROLL
      for (int n = 0; n < kN; ++n) {
        now = fmaxf(now, fmaxf(scores[m][n].values[2 * half], scores[m][n].values[2 * half + 1]));
      }
      now = fmaxf(now, __shfl_xor_sync(~0u, now, 1));
      now = fmaxf(now, __shfl_xor_sync(~0u, now, 2));
      largest[m][half] = now;
      const float base = now == -INFINITY ? 0.0f : now * factor;  // no key yet: weights of 0, not of NaN
      shrink[m][half] = fast_exp2(multiply_add(before, factor, -base));
      any_shrinks = any_shrinks || shrink[m][half] != 1.0f;
      float sum = total[m][half] * shrink[m][half];
      TRAINER_UNROLL
      for (int n = 0; n < kN; ++n) {
        TRAINER_UNROLL
        for (int value = 2 * half; value < 2 * half + 2; ++value) {
          const float weight = fast_exp2(multiply_add(scores[m][n].values[value], factor, -base));
          scores[m][n].values[value] = weight;
          sum += weight;
        }
      }
      total[m][half] = sum;
    }
  }
  if (!__any_sync(~0u, any_shrinks)) return;  // most steps, once many keys have been seen
  TRAINER_UNROLL
  for (int m = 0; m < kM; ++m) {
    TRAINER_UNROLL
    for (int d = 0; d < kD; ++d) {
      TRAINER_UNROLL
      for (int value = 0; value < 4; ++value) sums[m][d].values[value] *= shrink[m][value / 2];
    }
  }
}

template <class T, int kWidth>
__global__ void __launch_bounds__(ForwardMemory<T, kWidth>::Block::kThreads)
    attention_forward_kernel(AttentionArguments<T> a) {
  using Memory = ForwardMemory<T, kWidth>;
  using Block = typename Memory::Block;
  using Tile = typename Memory::Tile;
  constexpr int kM = Memory::kM, kKeys = Memory::kKeys, kN = kKeys / 8, kD = kWidth / 8;
  SharedArena arena;
  const Tile queries = {arena.take<T>(Tile::elements(Block::kQueries))};
  const Tile keys = {arena.take<T>(Tile::elements(2 * kKeys))};  // of this step and the next
  const Tile values = {arena.take<T>(Tile::elements(2 * kKeys))};
  const SharedSpan<T> places = arena.take<T>(Memory::kWarps * Memory::Weights::kElements);
  const Tile own_queries = queries.from_row(16 * kM * warp_index());
  const SharedSpan<T> own_place = places + warp_index() * Memory::Weights::kElements;

  const Block block(a);
  CopyQueue queue;
  copy_tile<Block::kQueries, kWidth, Tile::kStride, Block::kThreads>(
      queue, queries.data, a.queries(block.batch, block.first_query, block.head));
  block.begin_copy(queue, a, keys, values, block.begin);
  queue.commit();

  const float factor = a.scale * kLog2E;
  FragmentC sums[kM][kD];
  clear(sums);
  float largest[kM][2], total[kM][2];
  TRAINER_UNROLL
  for (int m = 0; m < kM; ++m) {
    largest[m][0] = largest[m][1] = -INFINITY;
    total[m][0] = total[m][1] = 0.0f;
  }
  for (int step = block.begin; step < block.end; ++step) {
    queue.wait<0>();
    __syncthreads();  // everyone's copies of this step are there, and nobody reads the place of the next
    if (step + 1 < block.end) block.begin_copy(queue, a, keys, values, step + 1);
    queue.commit();
    const int first_key = step * kKeys;
    if (block.sees_nothing(a, first_key)) continue;
    FragmentC scores[kM][kN];
    clear(scores);
    multiply_rows(scores, own_queries, keys.from_row(Block::half(step)));
    if (block.some_hidden(first_key)) {
      TRAINER_UNROLL
      for (int m = 0; m < kM; ++m) {
        TRAINER_UNROLL
        for (int n = 0; n < kN; ++n) {
          TRAINER_UNROLL
          for (int value = 0; value < 4; ++value) {
            if (block.hidden(m, value, first_key + 8 * n)) scores[m][n].values[value] = -INFINITY;
          }
        }
      }
    }
    online_softmax(scores, sums, largest, total, factor);
    multiply_weights(sums, scores, values.from_row(Block::half(step)), own_place);
  }
  queue.wait<0>();

  TRAINER_UNROLL
  for (int m = 0; m < kM; ++m) {
    TRAINER_UNROLL
    for (int half = 0; half < 2; ++half) {
      float sum = total[m][half];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const int query = block.query(m, half);
      if (query >= a.query_length) continue;
      if (fragment_column(0) == 0) {
        a.result_log_sum_exp[a.statistic_at(block.batch, query, block.head)] =
            largest[m][half] * a.scale + logf(sum);
      }
      const float scale = 1.0f / sum;
      T* row = a.result + a.out_at(block.batch, query, block.head);
      TRAINER_UNROLL
      for (int d = 0; d < kD; ++d) {
        store_pair(row, 8 * d + fragment_column(0), a.head_dim, a.vectors,
                   sums[m][d].values[2 * half] * scale, sums[m][d].values[2 * half + 1] * scale);
      }
    }
  }
}

template <class T>
void launch_attention_forward(const AttentionArguments<T>& a, int64_t batch, Stream stream) {
  with_head_width(a.head_dim, [&](auto width) {
    using Memory = ForwardMemory<T, decltype(width)::value>;
    const dim3 grid(divide_up(a.query_length, Memory::Block::kQueries), a.heads, batch);
    launch(attention_forward_kernel<T, decltype(width)::value>, grid, Memory::Block::kThreads,
           Memory::kElements * sizeof(T), stream, a);
  });
}

}  // namespace

void run_attention_forward(const AttentionArguments<float>& a, int64_t batch, Stream stream) {
  launch_attention_forward(a, batch, stream);
}
void run_attention_forward(const AttentionArguments<Bf16>& a, int64_t batch, Stream stream) {
  launch_attention_forward(a, batch, stream);
}

}  // namespace trainer::TRAINER_DEVICE_NAMESPACE
