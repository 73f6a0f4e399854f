#include "optim/lr_schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace trainer {
namespace {

std::vector<double> course(const LrSchedule& schedule, int64_t updates) {
  std::vector<double> rates;
  for (int64_t k = 0; k < updates; ++k) rates.push_back(learning_rate(schedule, k));
  return rates;
}

void expect_near(const std::vector<double>& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 5e-7) << "update " << i;
}

TEST(Cases, WarmUpAndDecayByUpdatesDone) {
  LrSchedule s{.lr = 1, .min_lr = 0, .style = LrDecayStyle::kLinear, .warmup_steps = 4, .decay_steps = 10};
  expect_near(course(s, 11), {0, .25, .5, .75, 1, .833333, .666667, .5, .333333, .166667, 0});
  s.style = LrDecayStyle::kCosine;
  s.min_lr = 0.1;
  expect_near(course(s, 11), {0, .25, .5, .75, 1, .939711, .775, .55, .325, .160289, .1});
}

TEST(LrSchedule, ConstantStaysAtThePeak) {
  const LrSchedule s{
      .lr = 2, .min_lr = 1, .style = LrDecayStyle::kConstant, .warmup_steps = 2, .decay_steps = 4};
  expect_near(course(s, 7), {0, 1, 2, 2, 2, 2, 2});
}

// Four updates of tail, ending at update 10: shares 1, g(1/4), g(1/2), g(3/4), then the floor.
TEST(LrSchedule, WsdTails) {
  LrSchedule s{.lr = 1.2,
               .min_lr = 0.2,
               .style = LrDecayStyle::kWsd,
               .warmup_steps = 2,
               .decay_steps = 10,
               .wsd_decay_steps = 4};
  const auto tail = [&](WsdDecayStyle style) {
    s.wsd_style = style;
    const auto rates = course(s, 12);
    for (size_t k = 2; k <= 6; ++k) EXPECT_EQ(rates[k], 1.2) << "stable update " << k;
    EXPECT_EQ(rates[0], 0);
    EXPECT_EQ(rates[10], 0.2);
    EXPECT_EQ(rates[11], 0.2);
    return std::vector<double>(rates.begin() + 7, rates.begin() + 10);
  };
  expect_near(tail(WsdDecayStyle::kLinear), {0.95, 0.7, 0.45});
  expect_near(tail(WsdDecayStyle::kCosine), {1.0535534, 0.7, 0.3464466});
  expect_near(tail(WsdDecayStyle::kExponential), {0.8817928, 0.6142136, 0.3892071});
  expect_near(tail(WsdDecayStyle::kMinusSqrt), {0.7, 0.4928932, 0.3339746});
}

TEST(LrSchedule, EveryShapeIsFiniteAndBetweenZeroAndThePeak) {
  for (const auto style :
       {LrDecayStyle::kConstant, LrDecayStyle::kLinear, LrDecayStyle::kCosine, LrDecayStyle::kWsd})
    for (const auto tail : {WsdDecayStyle::kLinear, WsdDecayStyle::kCosine, WsdDecayStyle::kExponential,
                            WsdDecayStyle::kMinusSqrt})
      for (int64_t total : {1, 2, 5})
        for (int64_t warmup = 0; warmup <= total + 2; ++warmup)
          for (int64_t wsd = 0; wsd <= total; ++wsd) {
            const LrSchedule s{1, 0.1, style, warmup, total, wsd, tail};
            for (int64_t k = 0; k < total + 5; ++k) {
              const double rate = learning_rate(s, k);
              EXPECT_TRUE(std::isfinite(rate) && rate >= 0 && rate <= 1)
                  << "style " << int(style) << " total " << total << " warm-up " << warmup << " update " << k
                  << ": " << rate;
              if (k >= std::max(total, warmup)) {
                EXPECT_EQ(rate, style == LrDecayStyle::kConstant ? 1 : 0.1);
              }
            }
          }
}

TEST(LrSchedule, OneUpdateWithoutWarmUpRunsAtThePeak) {
  const LrSchedule s{.lr = 0.5, .style = LrDecayStyle::kCosine, .decay_steps = 1};
  EXPECT_EQ(learning_rate(s, 0), 0.5);
  EXPECT_EQ(learning_rate(s, 1), 0);
}

}  // namespace
}  // namespace trainer
