// What the tests in one process and the program under mpirun have in common.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "base/philox.h"

namespace trainer::comm_cases {

// Rank `rank`'s term of a sum: magnitudes over many powers of two, so that another order of addition shows.
inline std::vector<float> contribution(int rank, size_t count) {
  const Philox random(static_cast<uint64_t>(rank) + 1);
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i)
    values[i] = random.normal(i) * std::exp2(static_cast<float>(random.block(i, 1)[0] % 16));
  return values;
}

}  // namespace trainer::comm_cases
