#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "base/label.h"
#include "ops/element.h"
#include "ops/reference_kernels.h"
#include "ops/visible_keys.h"

namespace trainer {
namespace {

// Element offsets of one (batch row, head): q and out, dout by query; k, v, dk, dv by key.
struct HeadView {
  const AttentionShape& s;
  int64_t b, h;
  int64_t kv_head() const { return h / (s.heads / s.kv_heads); }
  int64_t q(int64_t i) const { return (b * s.query_length + i) * s.q_stride + h * s.head_dim; }
  int64_t out(int64_t i) const { return ((b * s.query_length + i) * s.heads + h) * s.head_dim; }
  int64_t statistic(int64_t i) const { return (b * s.heads + h) * s.query_length + i; }
  int64_t k(int64_t j) const { return (b * s.key_rows + j) * s.k_stride + kv_head() * s.head_dim; }
  int64_t v(int64_t j) const { return (b * s.key_rows + j) * s.v_stride + kv_head() * s.head_dim; }
  int64_t dkv(int64_t j) const { return ((b * s.key_rows + j) * s.kv_heads + kv_head()) * s.head_dim; }
};

double dot(ConstRef a, int64_t a_at, ConstRef b, int64_t b_at, int64_t count) {
  double sum = 0.0;
  for (int64_t d = 0; d < count; ++d) sum += load_element(a, a_at + d) * load_element(b, b_at + d);
  return sum;
}

}  // namespace

void ReferenceKernels::attention_forward(Ref out, float* log_sum_exp, ConstRef q, ConstRef k, ConstRef v,
                                         const AttentionShape& s) {
  std::vector<double> weights(static_cast<size_t>(s.key_length));
  for (int64_t row = 0; row < s.batch * s.heads * s.query_length; ++row) {
    const int64_t i = row % s.query_length;
    const HeadView at{s, row / s.query_length / s.heads, row / s.query_length % s.heads};
    const VisibleKeys keys = visible_keys(s, at.b, i);
    double largest = -std::numeric_limits<double>::infinity(), total = 0.0;
    for (int64_t j = keys.first; j < keys.last; ++j) {
      weights[j] = s.scale * dot(q, at.q(i), k, at.k(j), s.head_dim);
      largest = std::max(largest, weights[j]);
    }
    for (int64_t j = keys.first; j < keys.last; ++j) {
      weights[j] = std::exp(weights[j] - largest);
      total += weights[j];
    }
    log_sum_exp[at.statistic(i)] = static_cast<float>(largest + std::log(total));
    for (int64_t d = 0; d < s.head_dim; ++d) {
      double sum = 0.0;
      for (int64_t j = keys.first; j < keys.last; ++j) sum += weights[j] * load_element(v, at.v(j) + d);
      store_element(out, at.out(i) + d, sum / total);
    }
  }
}

void ReferenceKernels::attention_backward(Ref dq, float* dk, float* dv, ConstRef dout, ConstRef out,
                                          const float* log_sum_exp, ConstRef q, ConstRef k, ConstRef v,
                                          const AttentionShape& s) {
  const size_t width = static_cast<size_t>(s.kv_heads * s.head_dim);
  std::vector<double> dk_sum(static_cast<size_t>(s.batch * s.key_rows) * width), dv_sum(dk_sum);
  std::vector<double> dq_row(static_cast<size_t>(s.head_dim));
  for (int64_t row = 0; row < s.batch * s.heads * s.query_length; ++row) {
    const int64_t i = row % s.query_length;
    const HeadView at{s, row / s.query_length / s.heads, row / s.query_length % s.heads};
    const VisibleKeys keys = visible_keys(s, at.b, i);
    const double own = dot(dout, at.out(i), out, at.out(i), s.head_dim);
    std::fill(dq_row.begin(), dq_row.end(), 0.0);
    for (int64_t j = keys.first; j < keys.last; ++j) {
      const double score = s.scale * dot(q, at.q(i), k, at.k(j), s.head_dim);
      const double weight = std::exp(score - log_sum_exp[at.statistic(i)]);
      const double dscore = s.scale * weight * (dot(dout, at.out(i), v, at.v(j), s.head_dim) - own);
      for (int64_t d = 0; d < s.head_dim; ++d) {
        dv_sum[at.dkv(j) + d] += weight * load_element(dout, at.out(i) + d);
        dk_sum[at.dkv(j) + d] += dscore * load_element(q, at.q(i) + d);
        dq_row[d] += dscore * load_element(k, at.k(j) + d);
      }
    }
    for (int64_t d = 0; d < s.head_dim; ++d) store_element(dq, at.q(i) + d, dq_row[d]);
  }
  for (size_t e = 0; e < dk_sum.size(); ++e) {
    dk[e] = static_cast<float>(dk[e] + dk_sum[e]);
    dv[e] = static_cast<float>(dv[e] + dv_sum[e]);
  }
}

ClassifierResult ReferenceKernels::classifier(const Classifier& a) {
  ClassifierResult result;
  const int ranks = a.part.group ? a.part.group->size() : 1, rank = a.part.group ? a.part.group->rank() : 0;
  const int64_t words = a.words();
  std::vector<double> logits(static_cast<size_t>(a.vocabulary)), statistics(static_cast<size_t>(a.tokens));
  const auto valid = [&](int64_t t) { return a.labels[t] != kIgnoredLabel; };
  const auto logit = [&](int64_t t, int64_t word) {
    return dot(a.x, t * a.hidden, a.weight, word * a.hidden, a.hidden);
  };
  // Of each rank's words: the largest logit, the sum of exponentials below it, the label's logit.
  std::vector<std::array<double, 3>> parts(static_cast<size_t>(ranks));
  for (int64_t t = 0; t < a.tokens; ++t) {
    double loss = 0.0;
    if (valid(t)) {
      require(a.labels[t] >= 0 && a.labels[t] < words, "label {} of token {} is outside the vocabulary of {}",
              a.labels[t], t, words);
      for (int64_t word = 0; word < a.vocabulary; ++word) logits[word] = logit(t, word);
      const double own_largest = *std::max_element(logits.begin(), logits.end());
      double own_total = 0.0;
      for (const double value : logits) own_total += std::exp(value - own_largest);
      const int64_t label = a.labels[t] - a.part.first;
      const bool here = label >= 0 && label < a.vocabulary;
      parts[static_cast<size_t>(rank)] = {own_largest, own_total,
                                          here ? logits[static_cast<size_t>(label)] : 0.0};
      if (a.part.group) a.part.group->all_gather(parts.data(), sizeof parts[0]);
      double largest = parts[0][0], total = 0.0, target = 0.0;
      for (const auto& part : parts) largest = std::max(largest, part[0]);
      for (const auto& part : parts) {
        total += part[1] * std::exp(part[0] - largest);
        target += part[2];
      }
      statistics[t] = largest + std::log(total);
      loss = statistics[t] - target;
      result.loss_sum += loss;
      ++result.valid_tokens;
    }
    if (a.token_losses) a.token_losses[t] = static_cast<float>(loss);
  }
  if (!a.dx) return result;
  std::vector<double> dx(static_cast<size_t>(a.tokens * a.hidden)), dweight(static_cast<size_t>(a.hidden));
  for (int64_t word = 0; word < a.vocabulary; ++word) {
    std::fill(dweight.begin(), dweight.end(), 0.0);
    for (int64_t t = 0; t < a.tokens; ++t) {
      if (!valid(t)) continue;
      const double slope =
          std::exp(logit(t, word) - statistics[t]) - (a.labels[t] - a.part.first == word ? 1.0 : 0.0);
      for (int64_t c = 0; c < a.hidden; ++c) {
        dx[t * a.hidden + c] += slope * load_element(a.weight, word * a.hidden + c);
        dweight[c] += slope * load_element(a.x, t * a.hidden + c);
      }
    }
    if (!a.dweight) continue;
    for (int64_t c = 0; c < a.hidden; ++c) {
      float& sum = a.dweight[word * a.hidden + c];
      sum = static_cast<float>((a.accumulate ? sum : 0.0) + dweight[c]);
    }
  }
  for (size_t e = 0; e < dx.size(); ++e) store_element(a.dx, static_cast<int64_t>(e), dx[e]);
  return result;
}

}  // namespace trainer
