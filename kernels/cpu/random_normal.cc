#include "ops/random_normal.h"

#include <algorithm>
#include <array>

#include "cpu/vector_table.h"

namespace trainer {

void fill_normal(const Philox& random, uint64_t first, float scale, std::span<float> values) {
  constexpr size_t kBlock = 2 * kNormalPairs;
  const VectorTable& table = vector_table(best_isa());
  std::array<float, kBlock> block;
  std::array<int, kBlock> doubtful;
  for (size_t done = 0; done < values.size();) {
    const uint64_t counter = (first + done) / 2;
    const size_t skipped = (first + done) % 2;
    const int doubts = table.normal_pairs(random.key(), counter, block.data(), doubtful.data());
    for (int i = 0; i < doubts; ++i) {
      const int at = doubtful[static_cast<size_t>(i)];
      block[static_cast<size_t>(at)] = random.normal(2 * counter + static_cast<uint64_t>(at));
    }
    const size_t count = std::min(kBlock - skipped, values.size() - done);
    for (size_t i = 0; i < count; ++i) values[done + i] = scale * block[skipped + i];
    done += count;
  }
}

}  // namespace trainer
