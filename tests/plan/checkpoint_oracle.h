// The planner's oracle: every set of kept boundaries and every choice of their homes, and for each the best
// windows by a linear program over the bytes of each boundary in each window, solved by a simplex of its own.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "plan/checkpoint_plan.h"

namespace trainer::testing {

// min c x with A x <= b, x >= 0, c >= 0, by the dual simplex method on a dense tableau: the origin is optimal
// but for rows with b < 0. Empty: infeasible.
class SmallLinearProgram {
 public:
  int variable(double cost) {
    costs_.push_back(cost);
    return static_cast<int>(costs_.size()) - 1;
  }
  void at_most(const std::vector<std::pair<int, double>>& terms, double bound) {
    rows_.push_back({terms, bound});
  }
  void equal(std::vector<std::pair<int, double>> terms, double value) {
    at_most(terms, value);
    for (auto& term : terms) term.second = -term.second;
    at_most(terms, -value);
  }

  std::optional<double> minimum() const {
    const size_t n = costs_.size(), m = rows_.size();
    std::vector<std::vector<double>> t(m + 1, std::vector<double>(n + m + 1));
    for (size_t r = 0; r < m; ++r) {
      for (const auto& [v, a] : rows_[r].terms) t[r][static_cast<size_t>(v)] += a;
      t[r][n + r] = 1;
      t[r][n + m] = rows_[r].bound;
    }
    std::copy(costs_.begin(), costs_.end(), t[m].begin());
    for (int pivots = 0; pivots < 10000; ++pivots) {
      size_t row = m;
      double lowest = -1e-9;
      for (size_t r = 0; r < m; ++r)
        if (t[r][n + m] < lowest) {
          lowest = t[r][n + m];
          row = r;
        }
      if (row == m) return -t[m][n + m];
      size_t column = n + m;
      double best = std::numeric_limits<double>::infinity();
      for (size_t c = 0; c < n + m; ++c)
        if (t[row][c] < -1e-9 && t[m][c] / -t[row][c] < best - 1e-12) {
          best = t[m][c] / -t[row][c];
          column = c;
        }
      if (column == n + m) return std::nullopt;
      const double pivot = t[row][column];
      for (double& x : t[row]) x /= pivot;
      for (size_t r = 0; r <= m; ++r) {
        const double factor = t[r][column];
        if (r == row || factor == 0) continue;
        for (size_t c = 0; c <= n + m; ++c) t[r][c] -= factor * t[row][c];
      }
    }
    return std::nullopt;
  }

 private:
  struct Row {
    std::vector<std::pair<int, double>> terms;
    double bound;
  };
  std::vector<double> costs_;
  std::vector<Row> rows_;
};

class CheckpointOracle {
 public:
  explicit CheckpointOracle(const CheckpointProblem& problem) : p_(problem), layers_(problem.layers()) {}

  // The least objective; empty: infeasible.
  std::optional<double> best() const {
    for (bool storage_may_wait : {false, true})
      if (const auto found = best(storage_may_wait)) return found;
    return std::nullopt;
  }

  // Of given homes.
  std::optional<double> best_windows(const std::vector<BoundaryHome>& homes, bool storage_may_wait) const {
    const auto base = without_windows(homes);
    if (!base) return std::nullopt;
    const auto windows = exposure(homes, storage_may_wait);
    return windows ? std::optional(*base + *windows) : std::nullopt;
  }

 private:
  using Term = std::pair<int, double>;

  static bool away(BoundaryHome home) {
    return home == BoundaryHome::kHost || home == BoundaryHome::kStorage;
  }
  double bytes(int i) const { return static_cast<double>(p_.boundary_bytes[static_cast<size_t>(i)]); }
  static BoundaryHome at(const std::vector<BoundaryHome>& homes, int i) {
    return homes[static_cast<size_t>(i)];
  }

  std::optional<double> best(bool storage_may_wait) const {
    struct Candidate {
      double base;
      std::vector<BoundaryHome> homes;
    };
    std::vector<Candidate> candidates;
    int64_t choices = 1;
    for (int i = 1; i < layers_; ++i) choices *= 4;
    for (int64_t choice = 0; choice < choices; ++choice) {
      std::vector<BoundaryHome> homes(static_cast<size_t>(layers_) + 1, BoundaryHome::kDevice);
      int64_t rest = choice;
      for (int i = 1; i < layers_; ++i, rest /= 4)
        homes[static_cast<size_t>(i)] = static_cast<BoundaryHome>(rest % 4);
      if (const auto base = without_windows(homes)) candidates.push_back({*base, homes});
    }
    std::sort(candidates.begin(), candidates.end(),
              [](const Candidate& a, const Candidate& b) { return a.base < b.base; });
    std::optional<double> best;
    for (const Candidate& c : candidates) {
      if (best && c.base >= *best) break;
      if (const auto more = exposure(c.homes, storage_may_wait))
        if (!best || c.base + *more < *best) best = c.base + *more;
    }
    return best;
  }

  int end_of(const std::vector<BoundaryHome>& homes, int begin) const {
    int end = begin + 1;
    while (at(homes, end) == BoundaryHome::kRecomputed) ++end;
    return end;
  }

  // Recompute and tie-breaks; empty where an edge is too long or a budget too small.
  std::optional<double> without_windows(const std::vector<BoundaryHome>& homes) const {
    double sum = 0, device = 0, host = 0, storage = 0;
    for (int i = 0; i <= layers_; ++i) {
      const BoundaryHome home = at(homes, i);
      if (home == BoundaryHome::kRecomputed) continue;
      sum += p_.checkpoint_price;
      if (home == BoundaryHome::kDevice) device += bytes(i);
      if (home == BoundaryHome::kHost) host += bytes(i);
      if (home == BoundaryHome::kStorage) {
        storage += bytes(i);
        sum += p_.storage_price;
      }
      if (i == layers_) break;
      const int end = end_of(homes, i);
      if (p_.longest_edge > 0 && end - i > p_.longest_edge) return std::nullopt;
      for (int j = i; j <= end - 2; ++j) sum += p_.forward_seconds[static_cast<size_t>(j)];
    }
    if (device > static_cast<double>(p_.device_bytes) || host > static_cast<double>(p_.host_bytes) ||
        storage > static_cast<double>(p_.storage_bytes))
      return std::nullopt;
    return sum;
  }

  // One variable per boundary and window, by lane: [boundary][window].
  using Pieces = std::vector<std::vector<int>>;

  std::optional<double> exposure(const std::vector<BoundaryHome>& homes, bool storage_may_wait) const {
    SmallLinearProgram lp;
    const auto none = [&] {
      return Pieces(static_cast<size_t>(layers_) + 1, std::vector<int>(static_cast<size_t>(layers_) + 1, -1));
    };
    Pieces down = none(), up = none(), write = none(), read = none();
    const auto flow = [&](Pieces& pieces, int i, int first, int last) {
      std::vector<Term> sum;
      for (int w = first; w <= last; ++w) {
        pieces[static_cast<size_t>(i)][static_cast<size_t>(w)] = lp.variable(0);
        sum.push_back({pieces[static_cast<size_t>(i)][static_cast<size_t>(w)], 1});
      }
      lp.equal(sum, bytes(i));
    };
    for (int i = 1; i < layers_; ++i) {
      if (!away(at(homes, i))) continue;
      const int end = end_of(homes, i);
      flow(down, i, i, layers_ - 1);
      flow(up, i, end, layers_);
      if (at(homes, i) != BoundaryHome::kStorage) continue;
      flow(write, i, i, layers_ - 1);
      flow(read, i, end, layers_);
      // Bytes go on in a later window.
      const auto k = static_cast<size_t>(i);
      for (int w = i; w < layers_; ++w) before(lp, down[k], 0, w - 1, write[k], 0, w);
      for (int w = end; w <= layers_; ++w) before(lp, read[k], w + 1, layers_, up[k], w, layers_);
    }
    link(lp, down, p_.forward_to_host, layers_ - 1, true);
    link(lp, up, p_.backward_to_device, layers_, true);
    link(lp, write, p_.storage_write, layers_ - 1, storage_may_wait);
    link(lp, read, p_.storage_read, layers_, storage_may_wait);
    memory(lp, homes, down, up);
    return lp.minimum();
  }

  // At least as much has moved in windows [a, b] of `source` as in [c, d] of `target`.
  static void before(SmallLinearProgram& lp, const std::vector<int>& source, int a, int b,
                     const std::vector<int>& target, int c, int d) {
    std::vector<Term> row;
    for (int w = a; w <= b; ++w)
      if (const int v = source[static_cast<size_t>(w)]; v >= 0) row.push_back({v, -1});
    for (int w = c; w <= d; ++w)
      if (const int v = target[static_cast<size_t>(w)]; v >= 0) row.push_back({v, 1});
    lp.at_most(row, 0);
  }

  void link(SmallLinearProgram& lp, const Pieces& pieces, const TransferWindows& windows, int last,
            bool may_wait) const {
    for (int w = 0; w <= last; ++w) {
      std::vector<Term> row;
      for (const auto& of_boundary : pieces)
        if (of_boundary[static_cast<size_t>(w)] >= 0) row.push_back({of_boundary[static_cast<size_t>(w)], 1});
      if (row.empty()) continue;
      if (may_wait) row.push_back({lp.variable(1 / windows.bytes_per_second), -1});
      const auto i = static_cast<size_t>(w);
      lp.at_most(row, std::max(0.0, static_cast<double>(windows.capacity[i] - windows.mandatory[i])));
    }
  }

  void memory(SmallLinearProgram& lp, const std::vector<BoundaryHome>& homes, const Pieces& down,
              const Pieces& up) const {
    const auto budget = static_cast<double>(p_.device_bytes);
    for (int w = 0; w < layers_; ++w) {  // forward of layer w
      double fixed =
          bytes(w) + bytes(w + 1) + static_cast<double>(p_.forward_workspace[static_cast<size_t>(w)]);
      std::vector<Term> row;
      for (int i = 0; i < w; ++i) {
        if (at(homes, i) != BoundaryHome::kRecomputed) fixed += bytes(i);
        if (away(at(homes, i)))
          for (int v = i; v < w; ++v)
            row.push_back({down[static_cast<size_t>(i)][static_cast<size_t>(v)], -1});
      }
      lp.at_most(row, budget - fixed);
    }
    for (int w = 0; w <= layers_; ++w) {  // backward of layer w; the head
      double fixed = static_cast<double>(p_.backward_workspace[static_cast<size_t>(w)]);
      std::vector<Term> row;
      for (int i = 0; i <= w; ++i) {
        if (at(homes, i) == BoundaryHome::kDevice) fixed += bytes(i);
        if (away(at(homes, i)))
          for (int v = std::max(w, end_of(homes, i)); v <= layers_; ++v)
            row.push_back({up[static_cast<size_t>(i)][static_cast<size_t>(v)], 1});
      }
      for (int i = w; at(homes, i) == BoundaryHome::kRecomputed; --i) fixed += bytes(i);
      lp.at_most(row, budget - fixed);
    }
  }

  const CheckpointProblem& p_;
  const int layers_;
};

}  // namespace trainer::testing
