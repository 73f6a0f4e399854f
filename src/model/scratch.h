// Slices of the temporary memory granted to one layer call. The same code that takes the slices in a call
// also measures them for the catalogue, so the two cannot disagree.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "ops/tensor.h"

namespace trainer {

class Scratch {
 public:
  static constexpr int64_t kAlignment = 64;  // bytes

  Scratch() = default;  // measures only: slices are null
  explicit Scratch(std::span<std::byte> memory) : memory_(memory), measuring_(false) {}

  Ref take(int64_t elements, DType dtype) {
    const int64_t begin = used_;
    used_ += (elements * static_cast<int64_t>(size_of(dtype)) + kAlignment - 1) / kAlignment * kAlignment;
    peak_ = std::max(peak_, used_);
    if (measuring_) return {nullptr, dtype};
    require(used_ <= static_cast<int64_t>(memory_.size()),
            "a layer needs {} bytes of temporary memory, {} were granted", used_, memory_.size());
    return {memory_.data() + begin, dtype};
  }
  float* take_f32(int64_t elements) { return take(elements, DType::kF32).f32(); }

  // What was taken after `used()` returned `mark` may be handed out again.
  int64_t used() const { return used_; }
  void rewind(int64_t mark) { used_ = mark; }
  int64_t peak() const { return peak_; }

 private:
  std::span<std::byte> memory_;
  bool measuring_ = true;
  int64_t used_ = 0, peak_ = 0;
};

}  // namespace trainer
