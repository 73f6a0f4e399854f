#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace trainer {
namespace {

TEST(Cases, RotaryScalingIsApplied) {
  ModelConfig config;
  config.head_dim = 16;
  config.rope_theta = 10000;
  config.rope_scaling = RopeScaling{
      .factor = 8, .low_frequency_factor = 1, .high_frequency_factor = 4, .original_max_positions = 64};
  const double expected[] = {1,       0.2443845994,   0.01304225604, 0.003952847075,
                             0.00125, 3.952847075e-4, 1.25e-4,       3.952847075e-5};
  const auto frequencies = rope_inverse_frequencies(config);
  ASSERT_EQ(frequencies.size(), 8u);
  for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(frequencies[i], expected[i], 1e-9 * expected[i] + 1e-13) << i;
}

TEST(Cases, RotaryScalingOfARealModel) {
  ModelConfig config;
  config.head_dim = 64;
  config.rope_theta = 500000;
  const auto plain = rope_inverse_frequencies(config);
  config.rope_scaling = RopeScaling{
      .factor = 32, .low_frequency_factor = 1, .high_frequency_factor = 4, .original_max_positions = 8192};
  const auto scaled = rope_inverse_frequencies(config);
  const auto ratio = [&](size_t i) { return scaled[i] / plain[i]; };
  for (size_t i = 0; i < 15; ++i) EXPECT_EQ(ratio(i), 1) << i;
  EXPECT_NEAR(ratio(15), 0.605573, 1e-6);
  EXPECT_NEAR(ratio(16), 0.303743, 1e-6);
  EXPECT_NEAR(ratio(17), 0.103448, 1e-6);
  for (size_t i = 18; i < 32; ++i) EXPECT_DOUBLE_EQ(ratio(i), 1.0 / 32) << i;
}

TEST(RopeTables, HoldCosinesThenSines) {
  ModelConfig config;
  config.head_dim = 4;
  config.rope_theta = 100;
  const auto tables = make_rope_tables(config, 3);
  ASSERT_EQ(tables.size(), 12u);
  EXPECT_EQ(tables[0], 1);
  EXPECT_FLOAT_EQ(tables[4], static_cast<float>(std::cos(2.0)));
  EXPECT_FLOAT_EQ(tables[5], static_cast<float>(std::cos(0.2)));
  EXPECT_EQ(tables[6], 0);
  EXPECT_FLOAT_EQ(tables[10], static_cast<float>(std::sin(2.0)));
  EXPECT_FLOAT_EQ(tables[11], static_cast<float>(std::sin(0.2)));
}

}  // namespace
}  // namespace trainer
