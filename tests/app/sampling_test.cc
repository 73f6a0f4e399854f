#include "app/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "base/error.h"

namespace trainer {
namespace {

// ln of 0.4, 0.1, 0.3, 0.2, shifted.
const std::vector<float> kLogits = {std::log(0.4f) + 5, std::log(0.1f) + 5, std::log(0.3f) + 5,
                                    std::log(0.2f) + 5};

std::vector<double> frequencies(SamplingOptions options, int64_t draws = 20'000) {
  TokenSampler sampler(options, 1);
  std::vector<double> counts(kLogits.size());
  for (int64_t i = 0; i < draws; ++i) counts[static_cast<size_t>(sampler.sample(kLogits, i))] += 1;
  for (double& count : counts) count /= static_cast<double>(draws);
  return counts;
}

void expect_near(const std::vector<double>& a, const std::vector<double>& b) {
  for (size_t i = 0; i < b.size(); ++i) {
    EXPECT_NEAR(a[i], b[i], 0.015) << i;
    if (b[i] == 0) {
      EXPECT_EQ(a[i], 0) << i;
    }
  }
}

TEST(Sampling, FollowsTheProbabilities) { expect_near(frequencies({}), {0.4, 0.1, 0.3, 0.2}); }

TEST(Sampling, TemperatureSharpensThem) {
  // p^2, normalised by 0.30.
  expect_near(frequencies({.temperature = 0.5}), {16.0 / 30, 1.0 / 30, 9.0 / 30, 4.0 / 30});
}

TEST(Sampling, TopKAndTopPCutTheTail) {
  expect_near(frequencies({.top_k = 2}), {4.0 / 7, 0, 3.0 / 7, 0});
  expect_near(frequencies({.top_p = 0.65}), {4.0 / 7, 0, 3.0 / 7, 0});
  expect_near(frequencies({.top_p = 0.75}), {4.0 / 9, 0, 3.0 / 9, 2.0 / 9});
  expect_near(frequencies({.top_p = 0}), {1, 0, 0, 0});
  // Of the best three, 4/9 and 3/9 reach 0.75.
  expect_near(frequencies({.top_k = 3, .top_p = 0.75}), {4.0 / 7, 0, 3.0 / 7, 0});
  expect_near(frequencies({.top_k = 100}), {0.4, 0.1, 0.3, 0.2});
}

TEST(Sampling, ZeroTemperatureTakesTheMostLikely) {
  TokenSampler sampler({.temperature = 0}, 1);
  EXPECT_EQ(sampler.sample(kLogits, 0), 0);
  EXPECT_EQ(sampler.sample(std::vector<float>{1, 3, 3, 2}, 0), 1);
}

TEST(Sampling, DependsOnSeedAndPositionOnly) {
  TokenSampler forwards({}, 5), backwards({}, 5), other({}, 6);
  std::vector<int32_t> a(200), b(200), c(200);
  for (int64_t i = 0; i < 200; ++i) a[static_cast<size_t>(i)] = forwards.sample(kLogits, i);
  for (int64_t i = 199; i >= 0; --i) b[static_cast<size_t>(i)] = backwards.sample(kLogits, i);
  for (int64_t i = 0; i < 200; ++i) c[static_cast<size_t>(i)] = other.sample(kLogits, i);
  EXPECT_EQ(a, b);
  EXPECT_NE(a, c);
}

TEST(Sampling, ExtremeLogits) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  TokenSampler sampler({}, 1);
  for (int64_t i = 0; i < 100; ++i)
    EXPECT_EQ(sampler.sample(std::vector<float>{-kInfinity, 3e38f, -3e38f}, i), 1);
  EXPECT_THROW(sampler.sample(std::vector<float>{0, std::nanf("")}, 0), RunError);
}

}  // namespace
}  // namespace trainer
