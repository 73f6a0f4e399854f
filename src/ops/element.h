// One element of a typed array, for code where clarity matters more than speed.
#pragma once

#include "ops/bf16.h"
#include "ops/tensor.h"

namespace trainer {

inline double load_element(ConstRef array, int64_t index) {
  if (array.dtype == DType::kF32) return static_cast<const float*>(array.data)[index];
  return bf16_to_float(static_cast<const uint16_t*>(array.data)[index]);
}

inline void store_element(Ref array, int64_t index, double value) {
  const float rounded = static_cast<float>(value);
  if (array.dtype == DType::kF32) {
    static_cast<float*>(array.data)[index] = rounded;
  } else {
    static_cast<uint16_t*>(array.data)[index] = float_to_bf16(rounded);
  }
}

}  // namespace trainer
