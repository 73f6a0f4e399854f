// Byte-pair merging: the piece of text between two cuts becomes tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trainer {

// Which two tokens may be joined, in which order of preference, to what. Open addressing; read-only once
// filled.
class MergeTable {
 public:
  struct Merge {
    int32_t rank;  // lower goes first
    int32_t token;
  };

  // For at most `capacity` pairs.
  explicit MergeTable(size_t capacity);
  // A pair given again takes the later rank.
  void add(int32_t left, int32_t right, Merge merge);

  const Merge* find(int32_t left, int32_t right) const {
    const uint64_t key = key_of(left, right);
    for (size_t i = slot_of(key);; i = (i + 1) & mask_) {
      if (entries_[i].key == key) return &entries_[i].merge;
      if (entries_[i].key == kEmpty) return nullptr;
    }
  }

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};  // token ids are not negative
  struct Entry {
    uint64_t key = kEmpty;
    Merge merge{};
  };
  static uint64_t key_of(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  size_t slot_of(uint64_t key) const { return (key * 0x9E3779B97F4A7C15u >> 20) & mask_; }

  size_t mask_;
  std::vector<Entry> entries_;
};

// Replaces `tokens` by what merging makes of them: while any pair can be joined, the one of lowest rank is,
// the leftmost of equals first. n log n in the number of tokens.
void merge_tokens(const MergeTable& merges, std::vector<int32_t>& tokens);

}  // namespace trainer
