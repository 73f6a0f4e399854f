#include "cuda/attention.h"
#include "cuda/attention_arguments.h"
#include "cuda/shape_checks.h"

namespace trainer::TRAINER_DEVICE_NAMESPACE {
namespace {

constexpr int kDeltaWarps = 8;

// delta [batch, heads, query_length] = sums of dout * out over a head, [batch * query_length, heads,
// head_dim]; a warp each.
template <class T>
__global__ void __launch_bounds__(kWarpThreads* kDeltaWarps)
    attention_delta_kernel(float* delta, const T* dout, const T* out, int64_t rows, int heads,
                           int query_length, int head_dim) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kDeltaWarps + threadIdx.x / kWarpThreads;
  if (row >= rows) return;
  float sum = 0.0f;
  for (int d = static_cast<int>(threadIdx.x) % kWarpThreads; d < head_dim; d += kWarpThreads) {
    sum += to_float(dout[row * head_dim + d]) * to_float(out[row * head_dim + d]);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % kWarpThreads == 0) {
    const int64_t token = row / heads, head = row % heads;
    delta[(token / query_length * heads + head) * query_length + token % query_length] = sum;
  }
}

bool whole_pieces(const void* data, DType type, int64_t stride) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 &&
         stride * static_cast<int64_t>(size_of(type)) % 16 == 0;
}

// What both directions need. `result`, `dout`: of the tokens of q.
template <class T>
AttentionArguments<T> attention_arguments(ConstRef q, ConstRef k, ConstRef v, ConstRef dout, Ref result,
                                          int64_t result_stride, const AttentionShape& s,
                                          const int32_t* document_first) {
  const auto narrow = [](int64_t value) { return static_cast<int>(value); };
  AttentionArguments<T> a = {};
  a.q = static_cast<const T*>(q.data);
  a.k = static_cast<const T*>(k.data);
  a.v = static_cast<const T*>(v.data);
  a.dout = static_cast<const T*>(dout.data);
  a.result = static_cast<T*>(result.data);
  a.query_length = narrow(s.query_length);
  a.key_length = narrow(s.key_length);
  a.query_offset = narrow(s.query_offset);
  a.heads = narrow(s.heads);
  a.kv_heads = narrow(s.kv_heads);
  a.head_dim = narrow(s.head_dim);
  a.q_stride = s.q_stride;
  a.k_stride = s.k_stride;
  a.v_stride = s.v_stride;
  a.key_rows = s.key_rows;
  a.scale = s.scale;
  a.document_first = document_first;
  a.vectors = whole_pieces(a.q, q.dtype, s.q_stride) && whole_pieces(a.k, q.dtype, s.k_stride) &&
              whole_pieces(a.v, q.dtype, s.v_stride) && whole_pieces(a.dout, q.dtype, s.head_dim) &&
              whole_pieces(a.result, q.dtype, result_stride) && whole_pieces(nullptr, q.dtype, s.head_dim);
  return a;
}

}  // namespace

void attention_forward(Ref out, float* log_sum_exp, ConstRef q, ConstRef k, ConstRef v,
                       const AttentionShape& s, const int32_t* document_first, Stream stream) {
  check_attention(s, q.dtype, {out, k, v});
  if (s.batch == 0 || s.heads == 0 || s.query_length == 0) return;
  with_element(q.dtype, [&]<class T>(T) {
    AttentionArguments<T> a =
        attention_arguments<T>(q, k, v, {}, out, s.heads * s.head_dim, s, document_first);
    a.result_log_sum_exp = log_sum_exp;
    run_attention_forward(a, s.batch, stream);
  });
}

size_t attention_backward_workspace(const AttentionShape& s) {
  return static_cast<size_t>(s.batch * s.heads * s.query_length) * sizeof(float);
}

void attention_backward(Ref dq, float* dk, float* dv, ConstRef dout, ConstRef out, const float* log_sum_exp,
                        ConstRef q, ConstRef k, ConstRef v, const AttentionShape& s,
                        const int32_t* document_first, std::span<std::byte> workspace, Stream stream) {
  check_attention(s, q.dtype, {dq, dout, out, k, v});
  check_attention_workspace(workspace.size(), attention_backward_workspace(s));
  if (s.batch == 0 || s.heads == 0 || s.query_length == 0) return;
  with_element(q.dtype, [&]<class T>(T) {
    AttentionArguments<T> a = attention_arguments<T>(q, k, v, dout, dq, s.q_stride, s, document_first);
    a.vectors =
        a.vectors && whole_pieces(dk, DType::kF32, s.head_dim) && whole_pieces(dv, DType::kF32, s.head_dim);
    a.log_sum_exp = log_sum_exp;
    a.dk = dk;
    a.dv = dv;
    float* const delta = reinterpret_cast<float*>(workspace.data());
    a.delta = delta;
    const int64_t rows = s.batch * s.query_length * s.heads;
    launch(attention_delta_kernel<T>, divide_up(rows, kDeltaWarps), kWarpThreads * kDeltaWarps, 0, stream,
           delta, a.dout, static_cast<const T*>(out.data), rows, a.heads, a.query_length, a.head_dim);
    run_attention_backward_queries(a, s.batch, stream);
    run_attention_backward_keys(a, s.batch, stream);
  });
}

}  // namespace trainer::TRAINER_DEVICE_NAMESPACE
