#include "base/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>

namespace trainer {
namespace {

using Block = std::array<uint32_t, 4>;

// Philox4x32-10 of the reference implementation's known answers: counter, key, result.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(Philox(0).block(0, 0), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox(~uint64_t{0}).block(~uint64_t{0}, ~uint64_t{0}),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  // The digits of pi: counter 243f6a88 85a308d3 13198a2e 03707344, key a4093822 299f31d0.
  EXPECT_EQ(Philox(0x299f31d0a4093822).block(0x85a308d3243f6a88, 0x0370734413198a2e),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformNumbersAreTheWordsInOrder) {
  const Philox random(42);
  for (uint64_t i = 0; i < 100; ++i) {
    const float value = random.uniform(i, 7);
    EXPECT_EQ(value, static_cast<float>(random.block(i / 4, 7)[i % 4] >> 8) / 16777216.0f);
    EXPECT_GE(value, 0);
    EXPECT_LT(value, 1);
  }
}

struct Moments {
  double mean = 0, variance = 0, skewness = 0, kurtosis = 0;
};

template <class Sample>
Moments moments(size_t count, Sample sample) {
  double sums[5] = {};
  for (size_t i = 0; i < count; ++i) {
    const double x = sample(i);
    for (int power = 1; power <= 4; ++power) sums[power] += std::pow(x, power) / static_cast<double>(count);
  }
  const double m = sums[1], v = sums[2] - m * m;
  return {m, v, (sums[3] - 3 * m * sums[2] + 2 * m * m * m) / std::pow(v, 1.5),
          (sums[4] - 4 * m * sums[3] + 6 * m * m * sums[2] - 3 * m * m * m * m) / (v * v)};
}

TEST(Philox, MomentsOfTheDistributions) {
  const Philox random(5);
  constexpr size_t kCount = 400'000;
  const Moments uniform = moments(kCount, [&](size_t i) { return random.uniform(i); });
  EXPECT_NEAR(uniform.mean, 0.5, 0.002);
  EXPECT_NEAR(uniform.variance, 1.0 / 12, 0.001);
  const Moments normal = moments(kCount, [&](size_t i) { return random.normal(i); });
  EXPECT_NEAR(normal.mean, 0, 0.006);
  EXPECT_NEAR(normal.variance, 1, 0.01);
  EXPECT_NEAR(normal.skewness, 0, 0.02);
  EXPECT_NEAR(normal.kurtosis, 3, 0.05);
}

TEST(Philox, NeighboursStreamsAndKeysAreUncorrelated) {
  const Philox random(5), other(6);
  constexpr size_t kCount = 100'000;
  double next = 0, stream = 0, key = 0;
  for (size_t i = 0; i < kCount; ++i) {
    const double x = random.normal(i);
    next += x * random.normal(i + 1) / kCount;
    stream += x * random.normal(i, 1) / kCount;
    key += x * other.normal(i) / kCount;
  }
  EXPECT_NEAR(next, 0, 0.015);
  EXPECT_NEAR(stream, 0, 0.015);
  EXPECT_NEAR(key, 0, 0.015);
}

// The largest and smallest words must not become infinite or NaN.
TEST(Philox, NormalNumbersAreFinite) {
  const Philox random(1);
  for (uint64_t i = 0; i < 200'000; ++i) ASSERT_TRUE(std::isfinite(random.normal(i)));
}

}  // namespace
}  // namespace trainer
