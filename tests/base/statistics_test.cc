#include "base/statistics.h"

#include <gtest/gtest.h>

namespace trainer {
namespace {

TEST(Statistics, TheMedianIsInTheMiddle) {
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({5, 1, 3}), 3);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
}

TEST(Statistics, ErrorsAreRelativeToWhatWasMeasured) {
  const std::vector<double> predicted{1.1, 1.9}, measured{1, 2};
  const Agreement a = agreement_of(predicted, measured, 0.05);
  EXPECT_NEAR(a.mean_error, 0.075, 1e-12);
  EXPECT_NEAR(a.worst_error, 0.1, 1e-12);
  EXPECT_EQ(a.kendall_tau, 1);
  EXPECT_EQ(a.pairs, 1);
}

// Of the six pairs, (1, 1.02) is too close to count and (1.02, 2) is the wrong way round.
TEST(Statistics, KendallsTauCountsPairsThatAreApart) {
  const std::vector<double> measured{1, 1.02, 2, 3}, predicted{1, 1.5, 1.4, 2};
  const Agreement a = agreement_of(predicted, measured, 0.05);
  EXPECT_EQ(a.pairs, 5);
  EXPECT_NEAR(a.kendall_tau, 3.0 / 5, 1e-12);
  const std::vector<double> reversed{4, 3, 2, 1};
  EXPECT_EQ(agreement_of(reversed, measured, 0).kendall_tau, -1);
  EXPECT_EQ(agreement_of({{1.0}}, {{1.0}}, 0).kendall_tau, 1);
}

}  // namespace
}  // namespace trainer
