#include "comm/sum_plan.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/error.h"

namespace trainer {
namespace {

// A message of the segment of `segment`'s owner, from `sender` to `receiver`.
struct Sent {
  int segment, sender, receiver, level;
};

// Each rank begins with the segment after its own, so that not all send to the same rank first.
auto order(const Sent& sent, int size) {
  const auto distance = [&](int rank) { return (rank - sent.sender + size) % size; };
  return std::tuple(sent.level, distance(sent.segment), distance(sent.receiver), sent.sender);
}

std::vector<Sent> sorted(std::vector<Sent> messages, int size) {
  std::sort(messages.begin(), messages.end(),
            [&](const Sent& a, const Sent& b) { return order(a, size) < order(b, size); });
  return messages;
}

// Adds in place where the sum may stay, never into a contribution that must be kept: at the owner everything
// ends in its own data, elsewhere nothing touches it. A sum of two floats is the same both ways.
RankPlan::Sum place(const std::vector<Addition>& additions, int segment, int rank, bool owner,
                    std::map<int, int> places) {
  RankPlan::Sum sum{segment, {}, RankPlan::kOwn};
  places[rank] = RankPlan::kOwn;
  for (const Addition& addition : additions) {
    int into = places.at(addition.into), from = places.at(addition.from);
    if ((owner ? from : into) == RankPlan::kOwn) std::swap(into, from);
    sum.additions.push_back({into, from});
    sum.result = places[addition.into] = into;
  }
  return sum;
}

}  // namespace

void append_tree(std::vector<Addition>& additions, std::span<const int> ranks) {
  for (size_t distance = 1; distance < ranks.size(); distance *= 2)
    for (size_t i = 0; i + distance < ranks.size(); i += 2 * distance)
      additions.push_back({ranks[i], ranks[i + distance]});
}

std::vector<SumTree> sum_trees(SumAlgorithm algorithm, std::span<const int> nodes, int size) {
  std::vector<SumTree> trees;
  const std::vector<int> one_node(static_cast<size_t>(size), 0);
  require(nodes.empty() || nodes.size() == one_node.size(), "nodes of {} ranks for {}", nodes.size(), size);
  for (int owner = 0; owner < size; ++owner) switch (algorithm) {
      case SumAlgorithm::kDirect:
        trees.push_back(direct_sum_tree(size, owner));
        break;
      case SumAlgorithm::kRing:
        trees.push_back(ring_sum_tree(size, owner));
        break;
      case SumAlgorithm::kTree:
        trees.push_back(binary_sum_tree(size, owner));
        break;
      case SumAlgorithm::kHierarchical:
        trees.push_back(hierarchical_sum_tree(nodes.empty() ? one_node : nodes, owner));
        break;
    }
  return trees;
}

RankPlan rank_plan(const std::vector<SumTree>& trees, int rank) {
  const int size = static_cast<int>(trees.size());
  std::vector<Sent> up, down;
  for (int segment = 0; segment < size; ++segment) {
    const SumTree& tree = trees[static_cast<size_t>(segment)];
    for (int child = 0; child < size; ++child) {
      const int parent = tree.parent[static_cast<size_t>(child)],
                level = tree.level[static_cast<size_t>(child)];
      if (parent < 0 || (child != rank && parent != rank)) continue;
      up.push_back({segment, child, parent, level});
      down.push_back({segment, parent, child, -level});
    }
  }
  RankPlan plan;
  std::vector<std::map<int, int>> places(trees.size());
  for (const Sent& sent : sorted(std::move(up), size)) {
    if (sent.sender == rank) {
      plan.contributions_out.push_back({sent.segment, sent.receiver});
    } else {
      places[static_cast<size_t>(sent.segment)][sent.sender] = static_cast<int>(plan.contributions_in.size());
      plan.contributions_in.push_back({sent.segment, sent.sender});
    }
  }
  for (const Sent& sent : sorted(std::move(down), size)) {
    if (sent.sender == rank)
      plan.results_out.push_back({sent.segment, sent.receiver});
    else
      plan.results_in.push_back({sent.segment, sent.sender});
  }
  for (int segment = 0; segment < size; ++segment) {
    const auto& additions = trees[static_cast<size_t>(segment)].additions[static_cast<size_t>(rank)];
    if (!additions.empty())
      plan.sums.push_back(
          place(additions, segment, rank, segment == rank, places[static_cast<size_t>(segment)]));
  }
  return plan;
}

}  // namespace trainer
