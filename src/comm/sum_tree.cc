// The sums of the tree T, each formed at a rank below it, so that no rank receives more than a logarithm of
// contributions to one segment. With a power of two of ranks this is recursive halving, and its gather
// recursive doubling.
#include <bit>

#include "comm/sum_plan.h"

namespace trainer {
namespace {

// Forms T(lo, hi) and returns where. The owner keeps what it takes part in; elsewhere the ranks whose place
// among their kind is the owner's do the work, which shares it evenly among owners.
int form(SumTree& tree, int owner, int lo, int hi) {
  if (hi - lo == 1) return lo;
  const auto half = static_cast<int>(std::bit_floor(static_cast<unsigned>(hi - lo - 1)));
  const int mid = lo + half;
  const int left = form(tree, owner, lo, mid), right = form(tree, owner, mid, hi);
  const bool at_right = owner >= lo && owner < hi ? owner >= mid : (owner & half) != 0;
  const int at = at_right ? right : left, from = at_right ? left : right;
  tree.parent[static_cast<size_t>(from)] = at;
  tree.level[static_cast<size_t>(from)] = std::countr_zero(static_cast<unsigned>(half));
  tree.additions[static_cast<size_t>(at)].push_back({at, from});
  return at;
}

}  // namespace

SumTree binary_sum_tree(int size, int owner) {
  SumTree tree(size);
  tree.level[static_cast<size_t>(form(tree, owner, 0, size))] = size;
  return tree;
}

}  // namespace trainer
