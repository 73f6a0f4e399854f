// Sums of a rank's virtual ranks, which it runs one after the other, by a fixed binary tree.
#pragma once

#include <vector>

namespace trainer {

// Which gradient buffer each virtual rank accumulates into, and which pairs are added after it.
struct FoldPlan {
  struct Fold {
    int into, from;
  };
  std::vector<int> leaf;                 // [virtual rank]
  std::vector<std::vector<Fold>> folds;  // [virtual rank], in order
  int buffers = 1;
};

// `count`: a power of two. log2(count) + 1 buffers; the sum is in the first.
FoldPlan plan_folds(int count);

}  // namespace trainer
