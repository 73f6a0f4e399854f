// A typed array for tests of operations: random contents that depend on a seed only, guard bytes on both
// sides that are looked at when the array goes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/philox.h"
#include "ops/element.h"
#include "ops/tensor.h"

namespace trainer {

class Array {
 public:
  // `count` normal numbers x scale, rounded to the type.
  Array(DType dtype, int64_t count, uint64_t seed, double scale = 1.0) : Array(dtype, count) {
    const Philox random(seed);
    for (int64_t i = 0; i < count; ++i) set(i, scale * random.normal(static_cast<uint64_t>(i)));
  }
  // Filled with one value.
  static Array filled(DType dtype, int64_t count, double value) {
    Array array(dtype, count);
    for (int64_t i = 0; i < count; ++i) array.set(i, value);
    return array;
  }
  Array(const Array&) = default;
  Array& operator=(const Array&) = delete;
  ~Array() {
    const auto guard = [](std::byte b) { return b == kGuard; };
    EXPECT_TRUE(std::all_of(storage_.begin(), storage_.begin() + kMargin, guard))
        << "written before an array";
    EXPECT_TRUE(std::all_of(storage_.end() - kMargin, storage_.end(), guard)) << "written past an array";
  }

  int64_t size() const { return count_; }
  DType dtype() const { return dtype_; }
  Ref ref() { return {storage_.data() + kMargin, dtype_}; }
  ConstRef ref() const { return {storage_.data() + kMargin, dtype_}; }
  float* f32() { return ref().f32(); }
  const float* f32() const { return static_cast<const float*>(ref().data); }
  double at(int64_t i) const { return load_element(ref(), i); }
  void set(int64_t i, double value) { store_element(ref(), i, value); }
  bool same_bits(const Array& other) const { return storage_ == other.storage_; }

 private:
  static constexpr int64_t kMargin = 256;
  static constexpr std::byte kGuard{0xA5};

  Array(DType dtype, int64_t count)
      : dtype_(dtype),
        count_(count),
        storage_(static_cast<size_t>(count) * size_of(dtype) + 2 * kMargin, kGuard) {}

  DType dtype_;
  int64_t count_;
  std::vector<std::byte> storage_;
};

// Every element within `relative` of the expected one, small ones within `relative` of the root mean square
// of all; elements that are not finite alike. What lies between the rows of a strided array is compared with
// the rest.
inline void expect_near(const Array& expected, const Array& actual, double relative,
                        const std::string& what) {
  ASSERT_EQ(expected.size(), actual.size()) << what;
  double square = 0.0;
  for (int64_t i = 0; i < expected.size(); ++i) {
    if (std::isfinite(expected.at(i))) square += expected.at(i) * expected.at(i);
  }
  const double typical = std::sqrt(square / static_cast<double>(std::max<int64_t>(1, expected.size())));
  for (int64_t i = 0; i < expected.size(); ++i) {
    const double want = expected.at(i), got = actual.at(i);
    if (!std::isfinite(want)) {
      ASSERT_TRUE(std::isnan(want) ? std::isnan(got) : want == got) << what << " at " << i << ": " << got;
      continue;
    }
    ASSERT_LE(std::abs(got - want), relative * std::max(std::abs(want), typical))
        << what << " at " << i << " of " << expected.size() << ": expected " << want << ", got " << got;
  }
}

inline void expect_same_bits(const Array& a, const Array& b, const std::string& what) {
  EXPECT_TRUE(a.same_bits(b)) << what;
}

}  // namespace trainer
