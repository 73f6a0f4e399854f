#include <algorithm>

#include "base/hash.h"
#include "model/layer.h"
#include "ops/random_normal.h"

namespace trainer {

void initialize_parameter(const ParameterSpec& parameter, uint64_t seed, int64_t begin,
                          std::span<float> values) {
  switch (parameter.init) {
    case InitKind::kZero:
      std::ranges::fill(values, 0.0f);
      return;
    case InitKind::kOne:
      std::ranges::fill(values, 1.0f);
      return;
    case InitKind::kNormal:
      break;
  }
  const Philox random(hash_string(parameter.name, seed));
  const float std = static_cast<float>(parameter.init_std);
  fill_normal(random, static_cast<uint64_t>(begin), std, values);
}

void initialize_held(const ParameterSpec& parameter, uint64_t seed, int64_t begin, std::span<float> values) {
  for_each_held_run(
      parameter, begin, static_cast<int64_t>(values.size()), [&](int64_t from, int64_t to, int64_t count) {
        initialize_parameter(parameter, seed, from,
                             values.subspan(static_cast<size_t>(to - begin), static_cast<size_t>(count)));
      });
}

}  // namespace trainer
