#include "data/bpe_merge.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <queue>
#include <tuple>

namespace trainer {
namespace {

// Up to this many tokens a scan for the best pair is faster than a heap.
constexpr size_t kScanLimit = 24;

void merge_by_scanning(const MergeTable& merges, std::vector<int32_t>& tokens) {
  std::array<const MergeTable::Merge*, kScanLimit> with_next{};
  size_t count = tokens.size();
  for (size_t i = 0; i + 1 < count; ++i) with_next[i] = merges.find(tokens[i], tokens[i + 1]);
  for (;;) {
    size_t best = count;
    for (size_t i = 0; i + 1 < count; ++i)
      if (with_next[i] && (best == count || with_next[i]->rank < with_next[best]->rank)) best = i;
    if (best == count) break;
    tokens[best] = with_next[best]->token;
    --count;
    for (size_t i = best + 1; i < count; ++i) {
      tokens[i] = tokens[i + 1];
      with_next[i] = with_next[i + 1];
    }
    if (best > 0) with_next[best - 1] = merges.find(tokens[best - 1], tokens[best]);
    with_next[best] = best + 1 < count ? merges.find(tokens[best], tokens[best + 1]) : nullptr;
  }
  tokens.resize(count);
}

void merge_by_heap(const MergeTable& merges, std::vector<int32_t>& tokens) {
  const auto count = static_cast<int64_t>(tokens.size());
  std::vector<int64_t> previous(tokens.size()),
      next(tokens.size());  // a list over positions; -1 and `count` end it
  struct Candidate {
    int32_t rank;
    int64_t position;
    int32_t left, right, token;  // what stood there; a candidate whose tokens have changed since is stale
    bool operator>(const Candidate& other) const {
      return std::tie(rank, position) > std::tie(other.rank, other.position);
    }
  };
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  constexpr int32_t kGone = -1;
  const auto consider = [&](int64_t left) {
    if (left < 0 || next[left] >= count) return;
    const int32_t a = tokens[left], b = tokens[next[left]];
    if (const auto* merge = merges.find(a, b)) candidates.push({merge->rank, left, a, b, merge->token});
  };
  for (int64_t i = 0; i < count; ++i) {
    previous[i] = i - 1;
    next[i] = i + 1;
  }
  for (int64_t i = 0; i < count; ++i) consider(i);
  while (!candidates.empty()) {
    const Candidate best = candidates.top();
    candidates.pop();
    const int64_t left = best.position;
    if (tokens[left] != best.left || next[left] >= count || tokens[next[left]] != best.right) continue;
    const int64_t right = next[left];
    tokens[left] = best.token;
    tokens[right] = kGone;
    next[left] = next[right];
    if (next[left] < count) previous[next[left]] = left;
    consider(previous[left]);
    consider(left);
  }
  std::erase(tokens, kGone);
}

}  // namespace

MergeTable::MergeTable(size_t capacity)
    : mask_(std::bit_ceil(std::max<size_t>(2 * capacity, 16)) - 1), entries_(mask_ + 1) {}

void MergeTable::add(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = key_of(left, right);
  size_t i = slot_of(key);
  while (entries_[i].key != key && entries_[i].key != kEmpty) i = (i + 1) & mask_;
  entries_[i] = {key, merge};
}

void merge_tokens(const MergeTable& merges, std::vector<int32_t>& tokens) {
  if (tokens.size() <= kScanLimit)
    merge_by_scanning(merges, tokens);
  else
    merge_by_heap(merges, tokens);
}

}  // namespace trainer
