#include "base/statistics.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace trainer {

double median(std::vector<double> values) {
  require(!values.empty(), "there is no median of nothing");
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

Agreement agreement_of(std::span<const double> predicted, std::span<const double> measured,
                       double least_difference) {
  require(predicted.size() == measured.size(), "{} predictions of {} measurements", predicted.size(),
          measured.size());
  Agreement a;
  int balance = 0;
  for (size_t i = 0; i < measured.size(); ++i) {
    const double error = std::abs(predicted[i] / measured[i] - 1);
    a.mean_error += error / static_cast<double>(measured.size());
    a.worst_error = std::max(a.worst_error, error);
    for (size_t k = 0; k < i; ++k) {
      if (std::abs(measured[i] - measured[k]) < least_difference * std::min(measured[i], measured[k]))
        continue;
      ++a.pairs;
      const double order = (measured[i] - measured[k]) * (predicted[i] - predicted[k]);
      balance += order > 0 ? 1 : order < 0 ? -1 : 0;
    }
  }
  if (a.pairs > 0) a.kendall_tau = static_cast<double>(balance) / a.pairs;
  return a;
}

}  // namespace trainer
