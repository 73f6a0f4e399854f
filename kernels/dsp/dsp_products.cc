#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "dsp/dsp_kernels.h"
#include "ops/classifier_chunk.h"
#include "ops/element.h"
#include "ops/visible_keys.h"
#include "ops/wrong_label.h"

namespace trainer {
namespace {

// Of a pass over logits: the largest, exponentials, their sum, the quotients.
constexpr int64_t kSoftmaxOperations = 32;

}  // namespace

int64_t DspKernels::padded(int64_t elements) const {
  const int64_t unit = machine_.dma_alignment / dsp::kHalfBytes;
  return dsp::ceil_div(elements, unit) * unit;
}

const DspKernels::CountedTile& DspKernels::tile_of(const dsp::GemmProblem& p) {
  const auto [at, fresh] = tiles_.try_emplace({p.m, p.k, p.n});
  if (fresh) {
    at->second.tile = search_gemm_tile(machine_, p);
    at->second.count = run_gemm(machine_, p, at->second.tile).count;
  }
  return at->second;
}

const DspKernels::CountedAttention& DspKernels::attention_of(const dsp::AttentionProblem& p) const {
  const std::array<int64_t, 2> key{p.sequence, p.head_dim};
  if (const auto known = attentions_.find(key); known != attentions_.end()) return known->second;
  CountedAttention counted;
  counted.tile = search_attention_tile(machine_, p, dsp::Staging::kResident);
  counted.forward = count_attention_forward(machine_, p, counted.tile);
  counted.backward = run_attention_backward(machine_, p, counted.tile, dsp::Staging::kResident).count;
  return attentions_.emplace(key, counted).first->second;
}

void DspKernels::product(const char* operation, const dsp::GemmProblem& problem, const Element& a,
                         const Element& b,
                         const std::function<void(int64_t row, int64_t column, float value)>& store) {
  if (problem.m * problem.k * problem.n == 0) return;
  const dsp::GemmProblem p{.m = problem.m, .k = padded(problem.k), .n = padded(problem.n)};
  const CountedTile& counted = tile_of(p);
  book(operation, counted.count);
  if (!with_values_) return;
  std::vector<float> left(static_cast<size_t>(p.m * p.k)), right(static_cast<size_t>(p.k * p.n));
  for (int64_t row = 0; row < problem.m; ++row)
    for (int64_t i = 0; i < problem.k; ++i) left[static_cast<size_t>(row * p.k + i)] = a(row, i);
  for (int64_t i = 0; i < problem.k; ++i)
    for (int64_t column = 0; column < problem.n; ++column)
      right[static_cast<size_t>(i * p.n + column)] = b(i, column);
  const dsp::GemmOperands operands{.a = left, .b = right};
  const dsp::GemmResult result = run_gemm(machine_, p, counted.tile, &operands);
  for (int64_t row = 0; row < problem.m; ++row)
    for (int64_t column = 0; column < problem.n; ++column)
      store(row, column, result.c[static_cast<size_t>(row * p.n + column)]);
}

void DspKernels::linear_forward(Ref y, ConstRef x, ConstRef w, ConstRef bias, int64_t m, int64_t n,
                                int64_t k) {
  require_floats({y, x, w, bias});
  const auto *xs = static_cast<const float*>(x.data), *ws = static_cast<const float*>(w.data),
             *bs = static_cast<const float*>(bias.data);
  product(
      "linear forward", {.m = m, .k = k, .n = n}, [&](int64_t row, int64_t i) { return xs[row * k + i]; },
      [&](int64_t i, int64_t column) { return ws[column * k + i]; },
      [&](int64_t row, int64_t column, float value) {
        y.f32()[row * n + column] = value + (bs ? bs[column] : 0);
      });
  if (bias)
    book("bias forward",
         dsp::count_pass(
             machine_, {.rows = m, .columns = n, .operations = 1, .ddr_bytes = 2 * m * n * dsp::kHalfBytes}));
}

void DspKernels::linear_backward_input(Ref dx, ConstRef dy, ConstRef w, int64_t m, int64_t n, int64_t k,
                                       bool accumulate) {
  require_floats({dx, dy, w});
  const auto *dys = static_cast<const float*>(dy.data), *ws = static_cast<const float*>(w.data);
  product(
      "linear backward, input", {.m = m, .k = n, .n = k},
      [&](int64_t row, int64_t i) { return dys[row * n + i]; },
      [&](int64_t i, int64_t column) { return ws[i * k + column]; },
      [&](int64_t row, int64_t column, float value) {
        float& to = dx.f32()[row * k + column];
        to = accumulate ? to + value : value;
      });
  if (accumulate)
    book("add",
         dsp::count_pass(
             machine_, {.rows = m, .columns = k, .operations = 1, .ddr_bytes = 3 * m * k * dsp::kHalfBytes}));
}

void DspKernels::linear_backward_weight(float* dw, ConstRef dy, ConstRef x, int64_t m, int64_t n, int64_t k,
                                        bool accumulate) {
  require_floats({dy, x});
  // Its products are added to what is there.
  if (!accumulate) fill_zero(dw, static_cast<size_t>(n * k) * sizeof(float));
  const auto *dys = static_cast<const float*>(dy.data), *xs = static_cast<const float*>(x.data);
  product(
      "linear backward, weight", {.m = n, .k = m, .n = k},
      [&](int64_t row, int64_t i) { return dys[i * n + row]; },
      [&](int64_t i, int64_t column) { return xs[i * k + column]; },
      [&](int64_t row, int64_t column, float value) { dw[row * k + column] += value; });
  // The product is added to fp32 sums: two halves and two words.
  book("weight gradient sums",
       dsp::count_pass(
           machine_, {.rows = n, .columns = k, .operations = 2, .ddr_bytes = n * k * (dsp::kHalfBytes + 8)}));
}

void DspKernels::attention_forward(Ref out, float* log_sum_exp, ConstRef q, ConstRef k, ConstRef v,
                                   const AttentionShape& s) {
  require_floats({out, q, k, v});
  const dsp::AttentionProblem problem{padded(s.key_length), padded(s.head_dim)};
  book("attention forward", attention_of(problem).forward, s.batch * s.heads);
  if (with_values_) reference_->attention_forward(out, log_sum_exp, q, k, v, s);
}

void DspKernels::attention_backward(Ref dq, float* dk, float* dv, ConstRef dout, ConstRef out,
                                    const float* log_sum_exp, ConstRef q, ConstRef k, ConstRef v,
                                    const AttentionShape& s) {
  require_floats({dq, dout, out, q, k, v});
  require(s.query_offset == 0 && s.query_length == s.key_length,
          "the {} has attention of whole sequences only", name());
  const dsp::AttentionProblem problem{padded(s.key_length), padded(s.head_dim)};
  book("attention backward", attention_of(problem).backward, s.batch * s.heads);
  if (!with_values_) return;
  for (int64_t batch = 0; batch < s.batch; ++batch)
    for (int64_t head = 0; head < s.heads; ++head)
      attention_head_backward(dq, dk, dv, dout, out, log_sum_exp, q, k, v, s, batch, head);
}

// The probabilities that forward left behind are made again from its logarithms of sums.
void DspKernels::attention_head_backward(Ref dq, float* dk, float* dv, ConstRef dout, ConstRef out,
                                         const float* log_sum_exp, ConstRef q, ConstRef k, ConstRef v,
                                         const AttentionShape& s, int64_t batch, int64_t head) {
  const int64_t length = s.key_length, d = s.head_dim, rows = padded(length), columns = padded(d);
  const int64_t group = head / (s.heads / s.kv_heads), kv_width = s.kv_heads * d;
  const auto gather = [&](ConstRef array, int64_t first_row, int64_t stride, int64_t of_head) {
    std::vector<float> values(static_cast<size_t>(rows * columns));
    const auto* from = static_cast<const float*>(array.data) + first_row * stride + of_head * d;
    for (int64_t i = 0; i < length; ++i) std::copy_n(from + i * stride, d, values.begin() + i * columns);
    return values;
  };
  const int64_t out_stride = s.heads * d, query = batch * s.query_length, key = batch * s.key_rows;
  const auto qs = gather(q, query, s.q_stride, head), os = gather(out, query, out_stride, head),
             gos = gather(dout, query, out_stride, head), ks = gather(k, key, s.k_stride, group),
             vs = gather(v, key, s.v_stride, group);
  std::vector<float> probabilities(static_cast<size_t>(rows * rows));
  for (int64_t i = 0; i < length; ++i) {
    const VisibleKeys keys = visible_keys(s, batch, i);
    const float statistic = log_sum_exp[(batch * s.heads + head) * s.query_length + i];
    for (int64_t j = keys.first; j < keys.last; ++j) {
      double score = 0;
      for (int64_t c = 0; c < d; ++c)
        score += double{qs[static_cast<size_t>(i * columns + c)]} * ks[static_cast<size_t>(j * columns + c)];
      probabilities[static_cast<size_t>(i * rows + j)] =
          static_cast<float>(std::exp(s.scale * score - statistic));
    }
  }
  const dsp::AttentionOperands operands{.q = qs,
                                        .k = ks,
                                        .v = vs,
                                        .out = os,
                                        .grad_out = gos,
                                        .probabilities = probabilities,
                                        .scale = s.scale};
  const dsp::AttentionProblem problem{rows, columns};
  const dsp::AttentionResult result = run_attention_backward(machine_, problem, attention_of(problem).tile,
                                                             dsp::Staging::kResident, &operands);
  for (int64_t i = 0; i < length; ++i)
    for (int64_t c = 0; c < d; ++c) {
      const auto at = static_cast<size_t>(i * columns + c);
      dq.f32()[(query + i) * s.q_stride + head * d + c] = result.grad_q[at];
      dk[(key + i) * kv_width + group * d + c] += result.grad_k[at];
      dv[(key + i) * kv_width + group * d + c] += result.grad_v[at];
    }
}

ClassifierResult DspKernels::classifier(const Classifier& a) {
  require_floats({a.x, a.weight, a.dx});
  require(a.part.group == nullptr, "the {} has no classifier that is cut over ranks", name());
  ClassifierResult result;
  if (a.dweight && !a.accumulate)
    fill_zero(a.dweight, static_cast<size_t>(a.vocabulary * a.hidden) * sizeof(float));
  const int64_t chunk = classifier_chunk_tokens(a.vocabulary);
  for (int64_t first = 0; first < a.tokens; first += chunk)
    classifier_chunk(a, first, std::min(chunk, a.tokens - first), result);
  if (!with_values_) result.valid_tokens = a.tokens;
  return result;
}

void DspKernels::classifier_chunk(const Classifier& a, int64_t first, int64_t tokens,
                                  ClassifierResult& result) {
  const int64_t words = a.vocabulary, hidden = a.hidden;
  const auto *x = static_cast<const float*>(a.x.data), *weight = static_cast<const float*>(a.weight.data);
  std::vector<float> logits(with_values_ ? static_cast<size_t>(tokens * words) : 0);
  const auto logit = [&](int64_t t, int64_t word) -> float& {
    return logits[static_cast<size_t>(t * words + word)];
  };
  product(
      "classifier forward", {.m = tokens, .k = hidden, .n = words},
      [&](int64_t t, int64_t i) { return x[(first + t) * hidden + i]; },
      [&](int64_t i, int64_t word) { return weight[word * hidden + i]; },
      [&](int64_t t, int64_t word, float value) { logit(t, word) = value; });
  book("classifier softmax", dsp::count_pass(machine_, {.rows = tokens,
                                                        .columns = words,
                                                        .operations = kSoftmaxOperations,
                                                        .ddr_bytes = 2 * tokens * words * dsp::kHalfBytes}));
  // Logits become slopes of the loss.
  for (int64_t t = 0; with_values_ && t < tokens; ++t) {
    const int32_t label = a.labels[first + t];
    const bool valid = label != kIgnoredLabel;
    double largest = -INFINITY, total = 0, loss = 0;
    for (int64_t word = 0; word < words; ++word) largest = std::max<double>(largest, logit(t, word));
    for (int64_t word = 0; word < words; ++word) total += std::exp(logit(t, word) - largest);
    if (valid) {
      if (label < 0 || label >= words) refuse_label(label, first + t, words);
      loss = largest + std::log(total) - logit(t, label);
      result.loss_sum += loss;
      ++result.valid_tokens;
    }
    if (a.token_losses) a.token_losses[first + t] = static_cast<float>(loss);
    for (int64_t word = 0; word < words; ++word)
      logit(t, word) =
          valid ? static_cast<float>(std::exp(logit(t, word) - largest) / total - (word == label ? 1 : 0))
                : 0;
  }
  if (!a.dx) return;
  product(
      "classifier backward, input", {.m = tokens, .k = words, .n = hidden},
      [&](int64_t t, int64_t word) { return logit(t, word); },
      [&](int64_t word, int64_t i) { return weight[word * hidden + i]; },
      [&](int64_t t, int64_t i, float value) { a.dx.f32()[(first + t) * hidden + i] = value; });
  if (!a.dweight) return;
  product(
      "classifier backward, weight", {.m = words, .k = tokens, .n = hidden},
      [&](int64_t word, int64_t t) { return logit(t, word); },
      [&](int64_t t, int64_t i) { return x[(first + t) * hidden + i]; },
      [&](int64_t word, int64_t i, float value) { a.dweight[word * hidden + i] += value; });
  book("weight gradient sums",
       dsp::count_pass(machine_, {.rows = words,
                                  .columns = hidden,
                                  .operations = 2,
                                  .ddr_bytes = words * hidden * (dsp::kHalfBytes + 8)}));
}

}  // namespace trainer
