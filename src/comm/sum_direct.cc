// Everyone sends to the owner, which adds in the order of the tree T.
#include <numeric>

#include "comm/sum_plan.h"

namespace trainer {

SumTree direct_sum_tree(int size, int owner) {
  SumTree tree(size);
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  for (int rank = 0; rank < size; ++rank)
    if (rank != owner) tree.parent[static_cast<size_t>(rank)] = owner;
  tree.level[static_cast<size_t>(owner)] = 1;
  append_tree(tree.additions[static_cast<size_t>(owner)], ranks);
  return tree;
}

}  // namespace trainer
