#include "schedule/boundary_sets.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace trainer {
namespace {

TEST(BoundarySets, AreThoseOfThePublishedTable) {
  const char* expected[4][5] = {{"0,1,2", "3,4,5,6,7", "-", "0,1,2,3", "-"},
                                {"0,1", "2,3,4,5,6", "7", "1,2,3", "0,1"},
                                {"0", "1,2,3,4,5", "6,7", "2,3", "0,1,2"},
                                {"-", "0,1,2,3,4", "5,6,7", "-", "0,1,2,3"}};
  for (int i = 0; i < 4; ++i) {
    const BoundarySets sets = boundary_sets(4, 8, i);
    const IndexRange found[] = {sets.left, sets.steady, sets.right, sets.left_stages, sets.right_stages};
    for (int c = 0; c < 5; ++c) EXPECT_EQ(list_of(found[c]), expected[i][c]) << i << " " << c;
  }
}

TEST(BoundarySets, CutEverySequenceWholeAndNameTheStageItself) {
  for (int stages = 1; stages <= 6; ++stages)
    for (int segments = std::max(1, stages - 1); segments <= 12; ++segments)
      for (int i = 0; i < stages; ++i) {
        const BoundarySets sets = boundary_sets(stages, segments, i);
        EXPECT_EQ(sets.left.size() + sets.steady.size() + sets.right.size(), segments);
        for (int x = 0; x < segments; ++x) {
          EXPECT_EQ(sets.left.contains(x) + sets.steady.contains(x) + sets.right.contains(x), 1);
          EXPECT_TRUE(sets.stages_of(i, x).contains(i));
        }
        if (stages == 1) {
          EXPECT_TRUE(sets.left.empty() && sets.right.empty());
        }
      }
}

TEST(BoundarySets, RefusesFewerSegmentsThanBoundaries) { EXPECT_THROW(boundary_sets(4, 2, 0), InputError); }

}  // namespace
}  // namespace trainer
