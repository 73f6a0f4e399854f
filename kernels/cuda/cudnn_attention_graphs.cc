#if defined(TRAINER_CUDA)

#include "cuda/cudnn_attention_graphs.h"

namespace trainer::cuda {
namespace {

using Layout = CudnnGraph::Layout;

Layout heads_of(const CudnnAttentionShape& s, int64_t heads, int64_t token, int64_t row) {
  return {{s.batch, heads, s.length, s.head_dim}, {row, s.head_dim, token, 1}};
}
// The same elements as [.., head_dim, length].
Layout transposed(Layout layout) {
  std::swap(layout.dimensions[2], layout.dimensions[3]);
  std::swap(layout.strides[2], layout.strides[3]);
  return layout;
}
Layout dense(int64_t batch, int64_t heads, int64_t rows, int64_t columns) {
  return {{batch, heads, rows, columns}, {heads * rows * columns, rows * columns, columns, 1}};
}
Layout scores_of(const CudnnAttentionShape& s) { return dense(s.batch, s.heads, s.length, s.length); }
Layout statistics_of(const CudnnAttentionShape& s, int64_t row) {
  return {{s.batch, s.heads, s.length, 1}, {row, s.length, 1, 1}};
}

CudnnTensor fp32_scores(CudnnGraph& graph, const CudnnAttentionShape& s) {
  return graph.between(scores_of(s), CUDNN_DATA_FLOAT);
}

// Scores where the key is not behind the query, kMasked elsewhere.
CudnnTensor mask(CudnnGraph& graph, const CudnnAttentionShape& s, CudnnTensor scores, CudnnTensor masked) {
  const CudnnTensor row = graph.between(scores_of(s), CUDNN_DATA_INT32);
  const CudnnTensor column = graph.between(scores_of(s), CUDNN_DATA_INT32);
  const CudnnTensor visible = graph.between(scores_of(s), CUDNN_DATA_BOOLEAN);
  const CudnnTensor result = fp32_scores(graph, s);
  graph.index(row, scores, 2);
  graph.index(column, scores, 3);
  graph.at_least(visible, row, column);
  graph.select(result, visible, scores, masked);
  return result;
}

// Scaled products of queries and keys.
CudnnTensor scores(CudnnGraph& graph, const CudnnAttentionShape& s, CudnnTensor queries, CudnnTensor keys,
                   CudnnTensor scale) {
  const CudnnTensor plain = fp32_scores(graph, s), scaled = fp32_scores(graph, s);
  graph.product(plain, queries, keys);
  graph.pointwise(CUDNN_POINTWISE_MUL, scaled, plain, scale);
  return scaled;
}

// result = a^T b for weights or slopes a of the scores; a key's head gets the sum over its queries' heads.
void key_gradient(CudnnGraph& graph, const CudnnAttentionShape& s, CudnnTensor result, CudnnTensor a,
                  CudnnTensor b) {
  const CudnnTensor turned = graph.between(transposed(scores_of(s)), CUDNN_DATA_BFLOAT16);
  graph.reshape(turned, a);
  if (s.heads == s.kv_heads) return graph.product(result, turned, b);
  const CudnnTensor all = graph.between(dense(s.batch, s.heads, s.length, s.head_dim), CUDNN_DATA_BFLOAT16);
  graph.product(all, turned, b);
  graph.reduce(CUDNN_REDUCE_TENSOR_ADD, result, all);
}

}  // namespace

CudnnGraph attention_forward_graph(const CudnnAttentionShape& s) {
  CudnnGraph graph;
  const auto between_rows = [&] {
    return graph.between(statistics_of(s, s.heads * s.length), CUDNN_DATA_FLOAT);
  };
  const CudnnTensor q = graph.memory(kQueries, heads_of(s, s.heads, s.q_token, s.q_row), CUDNN_DATA_BFLOAT16);
  const CudnnTensor k =
      graph.memory(kKeys, transposed(heads_of(s, s.kv_heads, s.k_token, s.k_row)), CUDNN_DATA_BFLOAT16);
  const CudnnTensor v =
      graph.memory(kValues, heads_of(s, s.kv_heads, s.v_token, s.v_row), CUDNN_DATA_BFLOAT16);
  const CudnnTensor out =
      graph.memory(kOut, heads_of(s, s.heads, s.out_token, s.out_row), CUDNN_DATA_BFLOAT16);
  const CudnnTensor log_sum_exp =
      graph.memory(kLogSumExp, statistics_of(s, s.statistic_row), CUDNN_DATA_FLOAT);
  const CudnnTensor scale = graph.number(kScale), masked = graph.number(kMasked);

  const CudnnTensor visible = mask(graph, s, scores(graph, s, q, k, scale), masked);
  const CudnnTensor largest = between_rows(), total = between_rows(), log_total = between_rows();
  const CudnnTensor below = fp32_scores(graph, s), exponentials = fp32_scores(graph, s);
  const CudnnTensor weights = graph.between(scores_of(s), CUDNN_DATA_BFLOAT16);
  graph.reduce(CUDNN_REDUCE_TENSOR_MAX, largest, visible);
  graph.pointwise(CUDNN_POINTWISE_SUB, below, visible, largest);
  graph.pointwise(CUDNN_POINTWISE_EXP, exponentials, below);
  graph.reduce(CUDNN_REDUCE_TENSOR_ADD, total, exponentials);
  graph.pointwise(CUDNN_POINTWISE_LOG, log_total, total);
  graph.pointwise(CUDNN_POINTWISE_ADD, log_sum_exp, largest, log_total);
  graph.pointwise(CUDNN_POINTWISE_DIV, weights, exponentials, total);
  graph.product(out, weights, v);
  return graph;
}

CudnnGraph attention_backward_graph(const CudnnAttentionShape& s) {
  CudnnGraph graph;
  const Layout queries = heads_of(s, s.heads, s.q_token, s.q_row);
  const Layout outs = heads_of(s, s.heads, s.out_token, s.out_row);
  const Layout keys = heads_of(s, s.kv_heads, s.k_token, s.k_row);
  const Layout values = heads_of(s, s.kv_heads, s.v_token, s.v_row);
  const Layout gradients = heads_of(s, s.kv_heads, s.gradient_token, s.gradient_row);
  const CudnnTensor q = graph.memory(kQueries, queries, CUDNN_DATA_BFLOAT16);
  const CudnnTensor k = graph.memory(kKeys, transposed(keys), CUDNN_DATA_BFLOAT16);
  const CudnnTensor v = graph.memory(kValues, transposed(values), CUDNN_DATA_BFLOAT16);
  const CudnnTensor out = graph.memory(kOut, outs, CUDNN_DATA_BFLOAT16);
  const CudnnTensor dout = graph.memory(kOutGradient, outs, CUDNN_DATA_BFLOAT16);
  const CudnnTensor log_sum_exp =
      graph.memory(kLogSumExp, statistics_of(s, s.statistic_row), CUDNN_DATA_FLOAT);
  const CudnnTensor dq = graph.memory(kQueryGradient, queries, CUDNN_DATA_BFLOAT16);
  const CudnnTensor dk = graph.memory(kKeyGradient, gradients, CUDNN_DATA_BFLOAT16);
  const CudnnTensor dv = graph.memory(kValueGradient, gradients, CUDNN_DATA_BFLOAT16);
  const CudnnTensor scale = graph.number(kScale), masked = graph.number(kMasked), one = graph.number(kOne);
  const Layout sums = statistics_of(s, s.heads * s.length);
  const CudnnTensor out_sums = graph.memory(kOutSums, sums, CUDNN_DATA_FLOAT);

  const CudnnTensor products = graph.between(outs, CUDNN_DATA_FLOAT);
  const CudnnTensor unscaled_sums = graph.between(sums, CUDNN_DATA_FLOAT);
  graph.pointwise(CUDNN_POINTWISE_MUL, products, dout, out);
  graph.reduce(CUDNN_REDUCE_TENSOR_ADD, unscaled_sums, products);
  graph.pointwise(CUDNN_POINTWISE_MUL, out_sums, unscaled_sums, one);

  const CudnnTensor below = fp32_scores(graph, s), weights = fp32_scores(graph, s);
  graph.pointwise(CUDNN_POINTWISE_SUB, below, scores(graph, s, q, k, scale), log_sum_exp);
  graph.pointwise(CUDNN_POINTWISE_EXP, weights, mask(graph, s, below, masked));
  key_gradient(graph, s, dv, weights, dout);

  const CudnnTensor weight_gradients = fp32_scores(graph, s), centred = fp32_scores(graph, s);
  const CudnnTensor unscaled = fp32_scores(graph, s), slopes = fp32_scores(graph, s);
  graph.product(weight_gradients, dout, v);
  graph.pointwise(CUDNN_POINTWISE_SUB, centred, weight_gradients, out_sums);
  graph.pointwise(CUDNN_POINTWISE_MUL, unscaled, centred, weights);
  graph.pointwise(CUDNN_POINTWISE_MUL, slopes, unscaled, scale);
  key_gradient(graph, s, dk, slopes, q);

  const CudnnTensor upright_keys = graph.between(keys, CUDNN_DATA_BFLOAT16);
  graph.reshape(upright_keys, k);
  graph.product(dq, slopes, upright_keys);
  return graph;
}

}  // namespace trainer::cuda

#endif
