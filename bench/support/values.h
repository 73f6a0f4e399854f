// Operands of benchmarked operations.
#pragma once

#include <cstdint>

#include "device/arena.h"
#include "ops/tensor.h"

namespace trainer {

// A resident array that begins on a page.
class Values {
 public:
  // Zeros.
  Values(DType dtype, int64_t count)
      : dtype_(dtype), count_(count), arena_(static_cast<size_t>(count) * size_of(dtype)) {}
  // Uniform in [-scale, scale), by `seed`.
  Values(DType dtype, int64_t count, uint64_t seed, double scale = 1);
  Values(Values&&) noexcept = default;

  Values copy() const;
  int64_t size() const { return count_; }
  DType dtype() const { return dtype_; }
  Ref ref() const { return {arena_.bytes().data(), dtype_}; }
  float* f32() const { return ref().f32(); }

 private:
  DType dtype_;
  int64_t count_;
  Arena arena_;
};

// Rows of `columns` elements, `stride` apart.
struct Rows {
  ConstRef data;
  int64_t rows = 1, columns = 0, stride = 0;
};
inline Rows all_of(const Values& values) { return {values.ref(), 1, values.size(), values.size()}; }

// The largest difference between elements, each by the expected one or, where that is small, by the root mean
// square of all. Infinite where an element is not a number.
double largest_difference(const Rows& want, const Rows& got);

}  // namespace trainer
