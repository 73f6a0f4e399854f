#include "base/hash.h"

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

}  // namespace

uint64_t hash_bytes(const void* data, size_t size, uint64_t seed) {
  const auto* p = static_cast<const unsigned char*>(data);
  const auto* end = p + size;
  uint64_t h;
  if (size >= 32) {
    uint64_t lanes[4] = {seed + kPrime1 + kPrime2, seed + kPrime2, seed, seed - kPrime1};
    for (; end - p >= 32; p += 32)
      for (int i = 0; i < 4; ++i) lanes[i] = round64(lanes[i], load<uint64_t>(p + 8 * i));
    h = std::rotl(lanes[0], 1) + std::rotl(lanes[1], 7) + std::rotl(lanes[2], 12) + std::rotl(lanes[3], 18);
    for (uint64_t lane : lanes) h = (h ^ round64(0, lane)) * kPrime1 + kPrime4;
  } else {
    h = seed + kPrime5;
  }
  h += size;
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

}  // namespace trainer
