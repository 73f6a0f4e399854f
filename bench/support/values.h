// Operands of benchmarked operations.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "device/device.h"
#include "ops/tensor.h"

namespace trainer {

// An array in the memory of a device, which outlives it. On the host it is resident and begins on a page.
class Values {
 public:
  // Zeros.
  Values(Device& device, DType dtype, int64_t count);
  // Uniform in [-scale, scale), by `seed`: the same on every device.
  Values(Device& device, DType dtype, int64_t count, uint64_t seed, double scale = 1);

  int64_t size() const { return count_; }
  DType dtype() const { return dtype_; }
  Ref ref() const { return {memory_->bytes().data(), dtype_}; }
  float* f32() const { return ref().f32(); }

  // This memory where the host reaches it; else a copy of what it holds once the device has done its work.
  Values on_host() const;

 private:
  Device* device_;
  DType dtype_;
  int64_t count_;
  std::shared_ptr<DeviceMemory> memory_;
};

// A copy of host values in the device's memory.
template <class T>
DeviceMemoryPtr placed(Device& device, const std::vector<T>& values) {
  const size_t bytes = values.size() * sizeof(T);
  DeviceMemoryPtr memory = device.allocate(bytes);
  device.compute().copy_in(memory->bytes().data(), values.data(), bytes);
  device.compute().synchronise();
  return memory;
}
template <class T>
T* elements_of(const DeviceMemoryPtr& memory) {
  return reinterpret_cast<T*>(memory->bytes().data());
}

// Rows of `columns` elements, `stride` apart.
struct Rows {
  ConstRef data;
  int64_t rows = 1, columns = 0, stride = 0;
};
inline Rows all_of(const Values& values) { return {values.ref(), 1, values.size(), values.size()}; }

// The largest difference between elements in host memory, each by the expected one or, where that is small,
// by the root mean square of all. Infinite where an element is not a number.
double largest_difference(const Rows& want, const Rows& got);

}  // namespace trainer
