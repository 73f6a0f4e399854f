#include "base/hash.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace trainer {
namespace {

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87ull, kPrime2 = 0xC2B2AE3D27D4EB4Full, kPrime3 = 0x165667B19E3779F9ull,
                   kPrime4 = 0x85EBCA77C2B2AE63ull, kPrime5 = 0x27D4EB2F165667C5ull;

template <class T>
T load(const unsigned char* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

uint64_t round64(uint64_t lane, uint64_t input) { return std::rotl(lane + input * kPrime2, 31) * kPrime1; }

using Lanes = std::array<uint64_t, 4>;

Lanes lanes_of(uint64_t seed) { return {seed + kPrime1 + kPrime2, seed + kPrime2, seed, seed - kPrime1}; }

// Takes whole blocks of 32 bytes; returns where it stopped.
const unsigned char* absorb(Lanes& lanes, const unsigned char* p, const unsigned char* end) {
  Lanes local = lanes;
  for (; end - p >= 32; p += 32)
    for (size_t i = 0; i < 4; ++i) local[i] = round64(local[i], load<uint64_t>(p + 8 * i));
  lanes = local;
  return p;
}

uint64_t merge(const Lanes& lanes) {
  uint64_t h = std::rotl(lanes[0], 1) + std::rotl(lanes[1], 7) + std::rotl(lanes[2], 12) + std::rotl(lanes[3], 18);
  for (uint64_t lane : lanes) h = (h ^ round64(0, lane)) * kPrime1 + kPrime4;
  return h;
}

// The last less than 32 bytes, and the final mixing.
uint64_t finish(uint64_t h, const unsigned char* p, const unsigned char* end) {
  for (; end - p >= 8; p += 8) h = std::rotl(h ^ round64(0, load<uint64_t>(p)), 27) * kPrime1 + kPrime4;
  if (end - p >= 4) {
    h = std::rotl(h ^ load<uint32_t>(p) * kPrime1, 23) * kPrime2 + kPrime3;
    p += 4;
  }
  for (; p < end; ++p) h = std::rotl(h ^ *p * kPrime5, 11) * kPrime1;
  h = (h ^ (h >> 33)) * kPrime2;
  h = (h ^ (h >> 29)) * kPrime3;
  return h ^ (h >> 32);
}

}  // namespace

uint64_t hash_bytes(const void* data, size_t size, uint64_t seed) {
  const auto* p = static_cast<const unsigned char*>(data);
  const auto* end = p + size;
  if (size < 32) return finish(seed + kPrime5 + size, p, end);
  Lanes lanes = lanes_of(seed);
  p = absorb(lanes, p, end);
  return finish(merge(lanes) + size, p, end);
}

std::array<uint64_t, 4> StreamingHash::initial_lanes() { return lanes_of(0); }

void StreamingHash::add(const void* data, size_t size) {
  if (size == 0) return;
  const auto* p = static_cast<const unsigned char*>(data);
  const auto* end = p + size;
  const size_t held = total_ % kBlock;
  total_ += size;
  if (held > 0) {
    const size_t taken = std::min(size, kBlock - held);
    std::memcpy(pending_.data() + held, p, taken);
    p += taken;
    if (held + taken < kBlock) return;
    absorb(lanes_, pending_.data(), pending_.data() + kBlock);
  }
  p = absorb(lanes_, p, end);
  std::memcpy(pending_.data(), p, static_cast<size_t>(end - p));
}

uint64_t StreamingHash::value() const {
  const auto* p = pending_.data();
  const uint64_t h = total_ < kBlock ? kPrime5 : merge(lanes_);
  return finish(h + total_, p, p + total_ % kBlock);
}

}  // namespace trainer
