// Each rank adds its own contribution to what its predecessor sends; the owner's successor begins.
#include "comm/sum_plan.h"

namespace trainer {

SumTree ring_sum_tree(int size, int owner) {
  SumTree tree(size);
  for (int step = 1; step <= size; ++step) {
    const int rank = (owner + step) % size, next = (rank + 1) % size;
    tree.level[static_cast<size_t>(rank)] = step - 1;
    if (rank == owner) continue;
    tree.parent[static_cast<size_t>(rank)] = next;
    tree.additions[static_cast<size_t>(next)] = {{next, rank}};
  }
  return tree;
}

}  // namespace trainer
