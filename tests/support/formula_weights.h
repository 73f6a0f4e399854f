// Weights that follow from a tensor's name and the element's index on disk; make_golden.py has the same
// formula.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "model/layer.h"

namespace trainer {

// In [-1, 1), exact in single precision.
inline float formula_uniform(std::string_view name, int64_t index) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  uint64_t z = hash + (static_cast<uint64_t>(index) + 1) * 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  z ^= z >> 31;
  return static_cast<float>(z >> 40) * 0x1p-23f - 1.0f;
}

// The index on disk of element `index` as libtrainer holds it.
inline int64_t index_on_disk(const ParameterSpec& spec, int64_t index) {
  if (!spec.transposed_on_disk) return index;
  const int64_t rows = spec.shape[0], columns = spec.shape[1];
  return index % columns * rows + index / columns;
}

inline void formula_weights(const ParameterSpec& spec, std::span<float> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    const float u = formula_uniform(spec.name, index_on_disk(spec, static_cast<int64_t>(i)));
    if (spec.shape.size() == 2)
      values[i] = u * 0.3125f;
    else if (spec.name.ends_with("bias"))
      values[i] = u * 0.25f;
    else
      values[i] = 1.0f + u * 0.25f;
  }
}

}  // namespace trainer
