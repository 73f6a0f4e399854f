// A block of threads that takes a block of queries of one head through the keys that any of them sees, kKeys
// a step: the forward pass, and dq. Each warp has 16 kM queries of its own; a lane has rows of C fragments.
#pragma once

#include "cuda/attention_arguments.h"
#include "cuda/attention_tiles.h"

namespace trainer::TRAINER_DEVICE_NAMESPACE {

template <class T, int kWidth, int kM, int kWarps, int kKeys>
struct QueryBlock {
  static constexpr int kQueries = 16 * kM * kWarps, kThreads = kWarpThreads * kWarps;
  using Tile = SharedTile<T, kWidth>;

  int batch, head, kv_head;
  int first_query, warp_query;
  int begin, end;                  // steps
  KeyRange warp_first, warp_last;  // what the warp's first and last query see
  KeyRange rows[kM][2];            // the same of the lane's rows, group and group + 8 of each m

  __device__ __forceinline__ explicit QueryBlock(const AttentionArguments<T>& a)
      : batch(static_cast<int>(blockIdx.z)),
        head(static_cast<int>(blockIdx.y)),
        kv_head(head / (a.heads / a.kv_heads)),
        // Those with the most keys first.
        first_query(static_cast<int>(gridDim.x - 1 - blockIdx.x) * kQueries),
        warp_query(first_query + 16 * kM * warp_index()),
        begin(a.visible(batch, first_query).first / kKeys),
        end((a.visible(batch, first_query + kQueries - 1).last + kKeys - 1) / kKeys),
        warp_first(a.visible(batch, warp_query)),
        warp_last(a.visible(batch, warp_query + 16 * kM - 1)) {
    TRAINER_UNROLL
    for (int m = 0; m < kM; ++m) {
      rows[m][0] = a.visible(batch, query(m, 0));
      rows[m][1] = a.visible(batch, query(m, 1));
    }
  }

  __device__ __forceinline__ int query(int m, int half) const {
    return warp_query + 16 * m + fragment_row(2 * half);
  }
  // The warp has no queries, or none that sees a key of the step that begins at `first_key`.
  __device__ __forceinline__ bool sees_nothing(const AttentionArguments<T>& a, int first_key) const {
    return warp_query >= a.query_length || first_key >= warp_last.last ||
           first_key + kKeys <= warp_first.first;
  }
  // Some query of the warp does not see some key of the step.
  __device__ __forceinline__ bool some_hidden(int first_key) const {
    return first_key < warp_last.first || first_key + kKeys > warp_first.last;
  }
  // Of a C fragment with its first column at `first_key`.
  __device__ __forceinline__ bool hidden(int m, int value, int first_key) const {
    const int key = first_key + fragment_column(value);
    return key < rows[m][value / 2].first || key >= rows[m][value / 2].last;
  }

  // A step's keys and values lie in the half of their tiles [2 kKeys, kWidth] that `half` begins.
  static __device__ __forceinline__ int half(int step) { return step % 2 * kKeys; }
  __device__ __forceinline__ void begin_copy(CopyQueue& queue, const AttentionArguments<T>& a,
                                             const Tile& keys, const Tile& values, int step) const {
    copy_tile<kKeys, kWidth, Tile::kStride, kThreads>(queue, keys.from_row(half(step)).data,
                                                      a.keys(batch, step * kKeys, kv_head));
    copy_tile<kKeys, kWidth, Tile::kStride, kThreads>(queue, values.from_row(half(step)).data,
                                                      a.values(batch, step * kKeys, kv_head));
  }
};

}  // namespace trainer::TRAINER_DEVICE_NAMESPACE
