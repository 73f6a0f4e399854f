// Shapes and arrays of attention, for the tests against the reference, of gradients and of threads.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <vector>

#include "ops/array.h"
#include "ops/kernel_set.h"

namespace trainer {

inline std::vector<AttentionShape> attention_shapes() {
  static const std::vector<int32_t> two_rows = {0, 5, 70, 75, 82, 146};      // rows of 75 keys
  static const std::vector<int32_t> segment_rows = {0, 3, 31, 60, 61, 100};  // rows of 60 keys
  const auto shape = [](int64_t batch, int64_t queries, int64_t offset, int64_t heads, int64_t kv_heads,
                        int64_t head_dim, int64_t gap, int64_t key_rows, std::span<const int32_t> starts) {
    return AttentionShape{.batch = batch,
                          .query_length = queries,
                          .key_length = offset + queries,
                          .query_offset = offset,
                          .heads = heads,
                          .kv_heads = kv_heads,
                          .head_dim = head_dim,
                          .q_stride = heads * head_dim + gap,
                          .k_stride = kv_heads * head_dim + 2 * gap,
                          .v_stride = kv_heads * head_dim + gap,
                          .key_rows = key_rows,
                          .scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
                          .document_starts = starts};
  };
  return {
      shape(2, 75, 0, 4, 2, 16, 3, 75, two_rows),       // grouped queries, packed documents, strides
      shape(1, 1, 0, 1, 1, 2, 0, 1, {}),                // one token
      shape(3, 17, 0, 3, 3, 10, 0, 17, {}),             // head size that is no multiple of a vector
      shape(1, 130, 0, 2, 1, 64, 8, 130, {}),           // several blocks of queries and keys
      shape(2, 23, 30, 6, 2, 20, 1, 60, segment_rows),  // a segment; keys beyond it are not there yet
      shape(1, 1, 96, 5, 1, 33, 0, 128, {}),            // one query against a cache of keys
      shape(1, 65, 65, 2, 2, 128, 0, 130, {}),
  };
}

inline std::string describe(const AttentionShape& s) {
  return fmt::format("{} x {} queries at {} of {}, {}/{} heads of {}", s.batch, s.query_length,
                     s.query_offset, s.key_length, s.heads, s.kv_heads, s.head_dim);
}

struct AttentionCase {
  Array q, k, v, out, dout, dq, log_sum_exp, dk, dv;
  AttentionCase(DType type, const AttentionShape& s)
      : q(type, s.batch * s.query_length * s.q_stride, 1),
        k(type, s.batch * s.key_rows * s.k_stride, 2),
        v(type, s.batch * s.key_rows * s.v_stride, 3),
        out(type, s.batch * s.query_length * s.heads * s.head_dim, 4),
        dout(type, s.batch * s.query_length * s.heads * s.head_dim, 5),
        dq(type, s.batch * s.query_length * s.q_stride, 6),
        log_sum_exp(DType::kF32, s.batch * s.heads * s.query_length, 7),
        dk(DType::kF32, s.batch * s.key_rows * s.kv_heads * s.head_dim, 8),
        dv(DType::kF32, s.batch * s.key_rows * s.kv_heads * s.head_dim, 9) {}

  void forward(KernelSet& kernels, const AttentionShape& s) {
    kernels.attention_forward(out.ref(), log_sum_exp.f32(), q.ref(), k.ref(), v.ref(), s);
  }
  void backward(KernelSet& kernels, const AttentionShape& s) {
    kernels.attention_backward(dq.ref(), dk.f32(), dv.f32(), dout.ref(), out.ref(), log_sum_exp.f32(),
                               q.ref(), k.ref(), v.ref(), s);
  }
};

}  // namespace trainer
