// Nodes by rank, as backends find them, in the form Communicator::nodes() has.
#pragma once

#include <algorithm>
#include <map>
#include <vector>

namespace trainer {

// Replaces the numbers that tell nodes apart by 0, 1, ... in the order in which they first appear.
inline std::vector<int> number_nodes(const std::vector<int>& nodes) {
  std::map<int, int> numbers;
  std::vector<int> numbered;
  for (const int node : nodes)
    numbered.push_back(numbers.emplace(node, static_cast<int>(numbers.size())).first->second);
  return numbered;
}

// How many ranks before `rank` are on its node.
inline int place_on_node(const std::vector<int>& nodes, int rank) {
  const auto own = nodes.begin() + rank;
  return static_cast<int>(std::count(nodes.begin(), own, *own));
}

}  // namespace trainer
