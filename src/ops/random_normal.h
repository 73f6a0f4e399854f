// Normal random numbers in bulk.
#pragma once

#include <cstdint>
#include <span>

#include "base/philox.h"

namespace trainer {

// values[i] = scale x random.normal(first + i), to the last bit, with the processor's vector instructions. On
// the calling thread.
void fill_normal(const Philox& random, uint64_t first, float scale, std::span<float> values);

}  // namespace trainer
