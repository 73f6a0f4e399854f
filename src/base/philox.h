// Counter-based random numbers (Philox4x32-10, Salmon et al., SC'11). The n-th number of a key does not
// depend on who asks for it, nor in which order.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace trainer {

class Philox {
 public:
  static constexpr int kRounds = 10;
  static constexpr uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57, kWeyl0 = 0x9E3779B9,
                            kWeyl1 = 0xBB67AE85;

  explicit Philox(uint64_t key) : key_{static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)} {}

  uint64_t key() const { return key_[0] | uint64_t{key_[1]} << 32; }

  // The four 32-bit words at `counter` of `stream`.
  std::array<uint32_t, 4> block(uint64_t counter, uint64_t stream = 0) const {
    std::array<uint32_t, 4> c{static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32),
                              static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)};
    uint32_t k0 = key_[0], k1 = key_[1];
    for (int round = 0; round < kRounds; ++round) {
      const uint64_t p0 = uint64_t{kMultiplier0} * c[0], p1 = uint64_t{kMultiplier1} * c[2];
      c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
           static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
      k0 += kWeyl0;
      k1 += kWeyl1;
    }
    return c;
  }

  // Uniform in [0, 1), 24 bits.
  float uniform(uint64_t index, uint64_t stream = 0) const {
    return static_cast<float>(block(index / 4, stream)[index % 4] >> 8) * 0x1p-24f;
  }

  // Standard normal by Box-Muller; number `index` of `stream`.
  float normal(uint64_t index, uint64_t stream = 0) const {
    const auto words = block(index / 2, stream);
    const size_t half = (index % 2) * 2;
    const double u = (static_cast<double>(words[half]) + 1.0) * 0x1p-32;  // (0, 1]
    const double angle = 2.0 * std::numbers::pi * static_cast<double>(words[half + 1]) * 0x1p-32;
    return static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(angle));
  }

 private:
  std::array<uint32_t, 2> key_;
};

}  // namespace trainer
