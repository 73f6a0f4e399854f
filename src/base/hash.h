// 64-bit hashing for provenance, digests and checksums. Stable across machines and versions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace trainer {

// XXH64 of `size` bytes.
uint64_t hash_bytes(const void* data, size_t size, uint64_t seed = 0);

// XXH64 (seed 0) of bytes that come in pieces: the value depends on the bytes only, not on how they were cut.
class StreamingHash {
 public:
  void add(const void* data, size_t size);
  uint64_t value() const;

 private:
  static constexpr size_t kBlock = 32;
  std::array<uint64_t, 4> lanes_ = initial_lanes();
  std::array<unsigned char, kBlock> pending_{};
  uint64_t total_ = 0;

  static std::array<uint64_t, 4> initial_lanes();
};

inline uint64_t hash_string(std::string_view text, uint64_t seed = 0) {
  return hash_bytes(text.data(), text.size(), seed);
}

// Accumulates values in order.
class Hasher {
 public:
  template <class T>
    requires std::is_arithmetic_v<T> || std::is_enum_v<T>
  Hasher& add(const T& value) {
    state_ = hash_bytes(&value, sizeof value, state_);
    return *this;
  }
  Hasher& add(std::string_view text) {
    add(text.size());
    state_ = hash_string(text, state_);
    return *this;
  }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0;
};

}  // namespace trainer
