// Nodes by rank, as backends find them, in the form Communicator::nodes() has.
#pragma once

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

}  // namespace trainer
