#include "ops/random_normal.h"

#include <gtest/gtest.h>

#include <bit>
#include <vector>

#include "cpu/vector_table.h"

namespace trainer {
namespace {

uint32_t bits(float value) { return std::bit_cast<uint32_t>(value); }

TEST(RandomNormal, EveryLevelGivesThePlainBitsOrDoubtsThem) {
  const Philox random(0x123456789ABCDEF0);
  int64_t doubts = 0, numbers = 0;
  for (const Isa isa : available_isas()) {
    // From small counters, and across the carry into the counter's upper word.
    for (const uint64_t first : {uint64_t{0}, (uint64_t{1} << 32) - 100}) {
      for (uint64_t counter = first; counter < first + 400'000; counter += kNormalPairs) {
        float values[2 * kNormalPairs];
        int doubtful[2 * kNormalPairs];
        const int count = vector_table(isa).normal_pairs(random.key(), counter, values, doubtful);
        for (int i = 0; i < count; ++i)
          values[doubtful[i]] = random.normal(2 * counter + static_cast<uint64_t>(doubtful[i]));
        doubts += count;
        numbers += 2 * kNormalPairs;
        for (int i = 0; i < 2 * kNormalPairs; ++i)
          ASSERT_EQ(bits(values[i]), bits(random.normal(2 * counter + static_cast<uint64_t>(i))))
              << name_of(isa) << " " << counter << " " << i;
      }
    }
  }
  EXPECT_GT(doubts, 0);
  EXPECT_LT(doubts * 10'000, numbers);
}

TEST(RandomNormal, AnyRangeOfNumbersIsTheSame) {
  const Philox random(7);
  for (const uint64_t first : {0, 1, 127, 128, 1001})
    for (const size_t count : {0, 1, 2, 127, 129, 1000}) {
      std::vector<float> values(count);
      fill_normal(random, first, 0.02F, values);
      for (size_t i = 0; i < count; ++i)
        ASSERT_EQ(bits(values[i]), bits(0.02F * random.normal(first + i))) << first << " " << i;
    }
}

}  // namespace
}  // namespace trainer
