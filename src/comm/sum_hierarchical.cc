// Inside each node one rank, another for each segment, adds what its neighbours have; the owner adds the sums
// of the nodes. Between two nodes each element travels once in each direction.
#include <algorithm>
#include <map>

#include "comm/sum_plan.h"

namespace trainer {

SumTree hierarchical_sum_tree(std::span<const int> nodes, int owner) {
  SumTree tree(static_cast<int>(nodes.size()));
  std::map<int, std::vector<int>> members;
  std::vector<int> node_order;  // by lowest rank
  for (size_t rank = 0; rank < nodes.size(); ++rank) {
    std::vector<int>& node = members[nodes[rank]];
    if (node.empty()) node_order.push_back(nodes[rank]);
    node.push_back(static_cast<int>(rank));
  }
  const int home = nodes[static_cast<size_t>(owner)];
  const auto place = static_cast<size_t>(std::lower_bound(members[home].begin(), members[home].end(), owner) -
                                         members[home].begin());

  std::vector<int> node_sums;  // the rank under which the owner has each node's sum
  std::vector<Addition>& at_owner = tree.additions[static_cast<size_t>(owner)];
  for (const int node : node_order) {
    const std::vector<int>& ranks = members[node];
    const int collector = node == home ? owner : ranks[place % ranks.size()];
    append_tree(tree.additions[static_cast<size_t>(collector)], ranks);
    for (const int rank : ranks)
      if (rank != collector) tree.parent[static_cast<size_t>(rank)] = collector;
    if (node != home) tree.parent[static_cast<size_t>(collector)] = owner;
    tree.level[static_cast<size_t>(collector)] = node == home ? 2 : 1;
    node_sums.push_back(node == home ? ranks.front() : collector);
  }
  append_tree(at_owner, node_sums);
  return tree;
}

}  // namespace trainer
