// What the attention kernels share: where heads lie in memory, and which keys a query sees.
#pragma once

#include "cuda/copy.h"
#include "cuda/device.h"

namespace trainer::TRAINER_DEVICE_NAMESPACE {

// Keys [first, last) of a batch row.
struct KeyRange {
  int first, last;
};

template <class T>
struct AttentionArguments {
  const T *q, *k, *v;
  const T* dout;              // backward only
  const float* log_sum_exp;   // [batch, heads, query_length]; backward only
  const float* delta;         // the same: sums of dout * out over a head
  T* result;                  // forward: out; backward over queries: dq
  float* result_log_sum_exp;  // forward only
  float *dk, *dv;             // backward over keys only
  int query_length, key_length, query_offset;
  int heads, kv_heads, head_dim;
  int64_t q_stride, k_stride, v_stride, key_rows;
  float scale;
  const int32_t* document_first;  // may be null
  bool vectors;  // every head of every token begins at a multiple of 16 bytes, in every array

  __device__ __forceinline__ int64_t query_at(int64_t batch, int query, int head) const {
    return (batch * query_length + query) * q_stride + static_cast<int64_t>(head) * head_dim;
  }
  // In out and dout.
  __device__ __forceinline__ int64_t out_at(int64_t batch, int query, int head) const {
    return ((batch * query_length + query) * heads + head) * head_dim;
  }
  __device__ __forceinline__ int64_t statistic_at(int64_t batch, int query, int head) const {
    return (batch * heads + head) * query_length + query;
  }
  // In dk and dv.
  __device__ __forceinline__ int64_t key_gradient_at(int64_t batch, int key, int kv_head) const {
    return ((batch * key_rows + key) * kv_heads + kv_head) * head_dim;
  }

  __device__ __forceinline__ GlobalTile<T> queries(int64_t batch, int query, int head) const {
    return {q + query_at(batch, query, head), q_stride, query_length - query, head_dim, vectors};
  }
  __device__ __forceinline__ GlobalTile<T> out_gradients(int64_t batch, int query, int head) const {
    return {dout + out_at(batch, query, head), static_cast<int64_t>(heads) * head_dim, query_length - query,
            head_dim, vectors};
  }
  __device__ __forceinline__ GlobalTile<T> keys(int64_t batch, int key, int kv_head) const {
    return {k + (batch * key_rows + key) * k_stride + static_cast<int64_t>(kv_head) * head_dim, k_stride,
            key_length - key, head_dim, vectors};
  }
  __device__ __forceinline__ GlobalTile<T> values(int64_t batch, int key, int kv_head) const {
    return {v + (batch * key_rows + key) * v_stride + static_cast<int64_t>(kv_head) * head_dim, v_stride,
            key_length - key, head_dim, vectors};
  }

  // What a query sees; both ends grow with the query. Those behind the last one see what it does.
  __device__ __forceinline__ KeyRange visible(int64_t batch, int query) const {
    const int own = query_offset + min(query, query_length - 1);
    int first = 0;
    if (document_first) {
      first = static_cast<int>(document_first[batch * key_rows + own] - batch * key_rows);
    }
    return {max(first, 0), own + 1};
  }
};

// 2^(kLog2E x) = e^x.
inline constexpr float kLog2E = 1.4426950408889634f;

// 2^x, within two units in the last place; less than the smallest normal number is 0.
__device__ __forceinline__ float fast_exp2(float x) {
#if defined(TRAINER_CUDA)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2f(x);
#endif
}

// Kernels exist for these widths of a head; narrower ones are filled up with zeros.
template <class F>
void with_head_width(int64_t head_dim, F&& f) {
  if (head_dim <= 32) {
    f(std::integral_constant<int, 32>());
  } else if (head_dim <= 64) {
    f(std::integral_constant<int, 64>());
  } else {
    f(std::integral_constant<int, 128>());
  }
}

void run_attention_forward(const AttentionArguments<float>& a, int64_t batch, Stream stream);
void run_attention_forward(const AttentionArguments<Bf16>& a, int64_t batch, Stream stream);
void run_attention_backward_queries(const AttentionArguments<float>& a, int64_t batch, Stream stream);
void run_attention_backward_queries(const AttentionArguments<Bf16>& a, int64_t batch, Stream stream);
void run_attention_backward_keys(const AttentionArguments<float>& a, int64_t batch, Stream stream);
void run_attention_backward_keys(const AttentionArguments<Bf16>& a, int64_t batch, Stream stream);

}  // namespace trainer::TRAINER_DEVICE_NAMESPACE
