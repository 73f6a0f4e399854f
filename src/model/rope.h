// Rotary position embedding tables.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"

namespace trainer {

// A view; the model owns the memory. Null for models without rotary positions.
struct RopeTables {
  const float* cosine = nullptr;  // [positions, head_dim / 2]
  const float* sine = nullptr;    // same shape
  int64_t positions = 0;
  // The same tables, contiguous as make_rope_tables makes them, at another place.
  RopeTables at(const float* tables) const { return {tables, tables + (sine - cosine), positions}; }
};

// [head_dim / 2] angles per position, Llama-3 scaling applied.
std::vector<double> rope_inverse_frequencies(const ModelConfig& config);

// Cosines of `positions` positions, then their sines.
std::vector<float> make_rope_tables(const ModelConfig& config, int64_t positions);

}  // namespace trainer
