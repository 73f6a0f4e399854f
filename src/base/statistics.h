// Figures about lists of numbers.
#pragma once

#include <span>
#include <vector>

namespace trainer {

// Of at least one value; of an even number, the mean of the two in the middle.
double median(std::vector<double> values);

// How well predictions agree with what was measured; all values above 0.
struct Agreement {
  double mean_error = 0, worst_error = 0;  // of |predicted / measured - 1|
  // Kendall's tau: pairs in the same order less pairs in the other, by all pairs, of those pairs whose
  // measured values differ by `least_difference` of the smaller at least. 1 where there is none.
  double kendall_tau = 1;
  int pairs = 0;
};
Agreement agreement_of(std::span<const double> predicted, std::span<const double> measured,
                       double least_difference);

}  // namespace trainer
