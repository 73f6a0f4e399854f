#include "dsp/check.h"

#include <algorithm>
#include <cmath>

#include "base/half.h"
#include "base/philox.h"

namespace trainer::dsp {
namespace {

float to_half(double value) { return half_to_float(float_to_half(static_cast<float>(value))); }

std::vector<float> random_halves(int64_t count, uint64_t seed, uint64_t stream) {
  const Philox random(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = to_half(random.normal(i, stream));
  return values;
}

double largest_error(const std::vector<float>& got, const std::vector<double>& want) {
  double error = 0, largest = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double difference = std::abs(got[i] - want[i]);
    if (std::isnan(difference)) return INFINITY;
    error = std::max(error, difference);
    largest = std::max(largest, std::abs(want[i]));
  }
  return error / largest;
}

// Views of [sequence, head_dim] and [sequence, sequence] by row and column.
template <class T>
struct Rows {
  std::vector<T>& values;
  int64_t columns;
  T& operator()(int64_t row, int64_t column) const {
    return values[static_cast<size_t>(row * columns + column)];
  }
};

}  // namespace

double gemm_error(const Machine& machine, const GemmProblem& problem, const GemmTile& tile, uint64_t seed) {
  const auto [m, k, n] = problem;
  const std::vector<float> a = random_halves(m * k, seed, 0), b = random_halves(k * n, seed, 1);
  std::vector<double> want(static_cast<size_t>(m * n));
  for (int64_t row = 0; row < m; ++row)
    for (int64_t i = 0; i < k; ++i)
      for (int64_t column = 0; column < n; ++column)
        want[static_cast<size_t>(row * n + column)] +=
            static_cast<double>(a[static_cast<size_t>(row * k + i)]) * b[static_cast<size_t>(i * n + column)];
  const GemmOperands operands{a, b};
  return largest_error(run_gemm(machine, problem, tile, &operands).c, want);
}

AttentionReference::AttentionReference(const AttentionProblem& problem, uint64_t seed)
    : scale(static_cast<float>(1 / std::sqrt(static_cast<double>(problem.head_dim)))) {
  const int64_t s = problem.sequence, d = problem.head_dim;
  q = random_halves(s * d, seed, 0);
  k = random_halves(s * d, seed, 1);
  v = random_halves(s * d, seed, 2);
  grad_out = random_halves(s * d, seed, 3);
  out.resize(q.size());
  probabilities.resize(static_cast<size_t>(s * s));
  for (std::vector<double>* gradient : {&grad_q, &grad_k, &grad_v}) gradient->resize(q.size());
  const Rows<float> q_at{q, d}, k_at{k, d}, v_at{v, d}, go_at{grad_out, d}, out_at{out, d},
      p_at{probabilities, s};
  const Rows<double> gq_at{grad_q, d}, gk_at{grad_k, d}, gv_at{grad_v, d};

  for (int64_t row = 0; row < s; ++row) {
    std::vector<double> p(static_cast<size_t>(row + 1)), gp(p.size()), o(static_cast<size_t>(d));
    double most = -INFINITY, sum = 0, row_sum = 0;
    for (int64_t key = 0; key <= row; ++key) {
      for (int64_t i = 0; i < d; ++i) {
        p[static_cast<size_t>(key)] += static_cast<double>(scale) * q_at(row, i) * k_at(key, i);
        gp[static_cast<size_t>(key)] += static_cast<double>(go_at(row, i)) * v_at(key, i);
      }
      most = std::max(most, p[static_cast<size_t>(key)]);
    }
    for (double& score : p) sum += score = std::exp(score - most);
    for (size_t key = 0; key < p.size(); ++key) {
      p[key] /= sum;
      row_sum += p[key] * gp[key];
    }
    for (int64_t key = 0; key <= row; ++key) {
      const double probability = p[static_cast<size_t>(key)];
      const double gs = scale * probability * (gp[static_cast<size_t>(key)] - row_sum);
      p_at(row, key) = to_half(probability);
      for (int64_t i = 0; i < d; ++i) {
        o[static_cast<size_t>(i)] += probability * v_at(key, i);
        gv_at(key, i) += probability * go_at(row, i);
        gq_at(row, i) += gs * k_at(key, i);
        gk_at(key, i) += gs * q_at(row, i);
      }
    }
    for (int64_t i = 0; i < d; ++i) out_at(row, i) = to_half(o[static_cast<size_t>(i)]);
  }
}

AttentionOperands AttentionReference::operands() const {
  return {.q = q,
          .k = k,
          .v = v,
          .out = out,
          .grad_out = grad_out,
          .probabilities = probabilities,
          .scale = scale};
}

double attention_error(const Machine& machine, const AttentionProblem& problem, const AttentionTile& tile,
                       Staging staging, uint64_t seed) {
  const AttentionReference reference(problem, seed);
  const AttentionOperands operands = reference.operands();
  const AttentionResult result = run_attention_backward(machine, problem, tile, staging, &operands);
  return std::max({largest_error(result.grad_q, reference.grad_q),
                   largest_error(result.grad_k, reference.grad_k),
                   largest_error(result.grad_v, reference.grad_v)});
}

}  // namespace trainer::dsp
