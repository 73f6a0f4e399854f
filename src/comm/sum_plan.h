// Who sends what to whom in a collective, apart from how the transfers are driven.
#pragma once

#include <span>
#include <vector>

#include "comm/collectives.h"

namespace trainer {

// The partial sum kept under rank `from` is added to the one kept under `into`.
struct Addition {
  int into, from;
};

// The way of one segment's contributions to its owner: every rank adds to its own contribution what its
// children send and passes the result to its parent; the owner, the root, ends with the sum. A gather goes
// the same way backwards.
struct SumTree {
  explicit SumTree(int size)
      : parent(static_cast<size_t>(size), -1), level(parent.size(), 0), additions(parent.size()) {}

  std::vector<int> parent;  // by rank; -1 for the owner
  std::vector<int> level;   // by rank; below the parent's. Lower levels send first
  // By rank, of itself and its children, in order.
  std::vector<std::vector<Addition>> additions;
};

SumTree direct_sum_tree(int size, int owner);
SumTree ring_sum_tree(int size, int owner);
SumTree binary_sum_tree(int size, int owner);
// `nodes` by rank.
SumTree hierarchical_sum_tree(std::span<const int> nodes, int owner);

// Appends the additions of the tree T of collectives.h over these ranks.
void append_tree(std::vector<Addition>& additions, std::span<const int> ranks);

// The part of one rank in every chunk of a collective. Between any two ranks, what one has under `..._out`
// for the other stands in the same order as what the other has under `..._in`.
struct RankPlan {
  struct Message {
    int segment, peer;
  };
  static constexpr int kOwn = -1;
  // Additions of places: a place is kOwn, this rank's data, or an index into contributions_in.
  struct Sum {
    int segment;
    std::vector<Addition> additions;
    int result;  // a place; kOwn exactly at the owner
  };

  std::vector<Message> contributions_out, contributions_in;
  std::vector<Message> results_out, results_in;
  std::vector<Sum> sums;  // at most one per segment
};

// One tree per owner.
std::vector<SumTree> sum_trees(SumAlgorithm algorithm, std::span<const int> nodes, int size);
RankPlan rank_plan(const std::vector<SumTree>& trees, int rank);

}  // namespace trainer
