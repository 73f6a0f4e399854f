#include "dsp/inner_loop.h"

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace trainer::dsp {
namespace {

// A register tile has at most 32 accumulators, half the vector registers: the operands of this step and the
// next need room, too.
constexpr int64_t kAccumulators = 32, kMostVectors = 8;

// Part `index` of `total` cut into `parts` as evenly as whole numbers go.
int64_t even_part(int64_t total, int64_t parts, int64_t index) {
  return total * (index + 1) / parts - total * index / parts;
}

int64_t register_tile_cycles(const Machine& machine, int64_t rows, int64_t vectors, int64_t depth) {
  const auto uses = slot_uses(rows, vectors);
  const int64_t words = *std::max_element(uses.begin(), uses.end()) + machine.stall_words;
  const int64_t load_and_store = 2 * ceil_div(rows * vectors, 2);
  return depth * words + load_and_store + machine.vector_latency;
}

}  // namespace

std::array<int64_t, kSlots> slot_uses(int64_t rows, int64_t vectors) {
  std::array<int64_t, kSlots> uses{};
  const auto use = [&](Slot slot) -> int64_t& { return uses[static_cast<size_t>(slot)]; };
  use(Slot::kVmac) = rows * vectors;
  use(Slot::kSmac1) = use(Slot::kSmac2) = use(Slot::kSldst) = rows;
  use(Slot::kVldst1) = ceil_div(vectors, 2);
  use(Slot::kVldst2) = vectors / 2;
  use(Slot::kSieu) = use(Slot::kSbr) = 1;
  return uses;
}

int64_t multiply_cycles(const Machine& machine, int64_t rows, int64_t depth, int64_t columns) {
  const int64_t vectors = ceil_div(columns, machine.lanes);
  int64_t fewest = INT64_MAX;
  for (int64_t wide = 1; wide <= std::min(vectors, kMostVectors); ++wide) {
    const int64_t row_parts = ceil_div(rows, kAccumulators / wide), vector_parts = ceil_div(vectors, wide);
    int64_t cycles = 0;
    for (int64_t i = 0; i < row_parts; ++i)
      for (int64_t j = 0; j < vector_parts; ++j)
        cycles += register_tile_cycles(machine, even_part(rows, row_parts, i),
                                       even_part(vectors, vector_parts, j), depth);
    fewest = std::min(fewest, cycles);
  }
  return fewest;
}

void multiply(const Block& a, const Block& b, const Block& c) {
  require(a.columns == b.rows && a.rows == c.rows && b.columns == c.columns, "tile product of unlike shapes");
  std::vector<float> accumulators(static_cast<size_t>(c.columns));
  for (int64_t row = 0; row < c.rows; ++row) {
    for (int64_t column = 0; column < c.columns; ++column)
      accumulators[static_cast<size_t>(column)] = c.get(row, column);
    for (int64_t k = 0; k < a.columns; ++k) {
      const float left = a.get(row, k);
      for (int64_t column = 0; column < c.columns; ++column)
        accumulators[static_cast<size_t>(column)] += left * b.get(k, column);
    }
    for (int64_t column = 0; column < c.columns; ++column)
      c.set(row, column, accumulators[static_cast<size_t>(column)]);
  }
}

int64_t vector_cycles(const Machine& machine, int64_t rows, int64_t columns, int64_t operations) {
  return rows * ceil_div(columns, machine.lanes) * operations + machine.vector_latency;
}

}  // namespace trainer::dsp
