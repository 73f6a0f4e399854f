// Shapes of attention that tests share.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/kernel_set.h"

namespace trainer {

// Causal attention of whole sequences, each of one document, queries, keys and values without gaps.
inline AttentionShape whole_sequences(int64_t batch, int64_t length, int64_t heads, int64_t kv_heads,
                                      int64_t head_dim) {
  return {.batch = batch,
          .query_length = length,
          .key_length = length,
          .query_offset = 0,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .q_stride = heads * head_dim,
          .k_stride = kv_heads * head_dim,
          .v_stride = kv_heads * head_dim,
          .key_rows = length,
          .scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
          .document_starts = {}};
}

}  // namespace trainer
