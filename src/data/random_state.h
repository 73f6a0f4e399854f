// The random numbers of numpy.random.RandomState as far as shuffling needs them, so that the order of samples
// equals that of tools built on numpy.
#pragma once

#include <bit>
#include <cstdint>
#include <random>
#include <span>
#include <utility>

namespace trainer {

class RandomState {
 public:
  // RandomState(seed) for an integer seed: the plain MT19937 initialisation, which std::mt19937 has as well.
  explicit RandomState(uint32_t seed) : engine_(seed) {}

  // Uniform in [0, max] by masking and rejection; beyond 32 bits a draw is two words, the high one first.
  uint64_t interval(uint64_t max) {
    if (max == 0) return 0;
    const uint64_t mask = ~uint64_t{0} >> std::countl_zero(max);
    for (;;) {
      uint64_t draw = engine_();
      if (max > 0xffffffffu) draw = draw << 32 | engine_();
      if ((draw &= mask) <= max) return draw;
    }
  }

  template <class T>
  void shuffle(std::span<T> values) {
    for (size_t i = values.size(); i-- > 1;) std::swap(values[i], values[interval(i)]);
  }

 private:
  std::mt19937 engine_;
};

}  // namespace trainer
