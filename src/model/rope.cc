#include "model/rope.h"

#include <cmath>
#include <numbers>

namespace trainer {

std::vector<double> rope_inverse_frequencies(const ModelConfig& config) {
  const int64_t half = config.head_dim / 2;
  std::vector<double> frequencies(static_cast<size_t>(half));
  for (int64_t i = 0; i < half; ++i) {
    double f =
        std::pow(config.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(config.head_dim));
    if (const auto& scaling = config.rope_scaling) {
      // Turns over the original context: many are kept, few are stretched by `factor`, those between are
      // blended.
      const double turns = static_cast<double>(scaling->original_max_positions) * f / (2 * std::numbers::pi);
      if (turns < scaling->low_frequency_factor) {
        f /= scaling->factor;
      } else if (turns <= scaling->high_frequency_factor) {
        const double keep = (turns - scaling->low_frequency_factor) /
                            (scaling->high_frequency_factor - scaling->low_frequency_factor);
        f = (1 - keep) * f / scaling->factor + keep * f;
      }
    }
    frequencies[static_cast<size_t>(i)] = f;
  }
  return frequencies;
}

std::vector<float> make_rope_tables(const ModelConfig& config, int64_t positions) {
  const auto frequencies = rope_inverse_frequencies(config);
  const size_t half = frequencies.size(), count = static_cast<size_t>(positions) * half;
  std::vector<float> tables(2 * count);
  for (size_t p = 0; p < static_cast<size_t>(positions); ++p)
    for (size_t i = 0; i < half; ++i) {
      // Rounded to single precision where transformers rounds: published weights were trained with these
      // angles, and at position 100 000 the exact ones differ from them by milliradians.
      const float angle = static_cast<float>(p) * static_cast<float>(frequencies[i]);
      tables[p * half + i] = static_cast<float>(std::cos(static_cast<double>(angle)));
      tables[count + p * half + i] = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
  return tables;
}

}  // namespace trainer
