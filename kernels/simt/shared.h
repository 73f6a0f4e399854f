// Shared memory as kernels see it: every access is checked. kernels/cuda/device_cuda.h has the same names
// over plain pointers.
#pragma once

#include <cstring>
#include <type_traits>

#include "base/error.h"
#include "simt/machine.h"

namespace trainer::simt {

// What `span[i]` is: reads on conversion, writes on assignment. Do not keep one (`auto x = span[i]`): name
// the type.
template <class T>
class SharedElement {
 public:
  SharedElement(Machine* machine, int64_t offset) : machine_(machine), offset_(offset) {}
  SharedElement(const SharedElement&) = default;

  operator T() const {
    machine_->shared().reads(offset_, sizeof(T), machine_->thread());
    T value;
    std::memcpy(&value, machine_->shared().data() + offset_, sizeof(T));
    return value;
  }
  const SharedElement& operator=(const T& value) const {
    machine_->shared().writes(offset_, sizeof(T), machine_->thread());
    std::memcpy(machine_->shared().data() + offset_, &value, sizeof(T));
    return *this;
  }
  const SharedElement& operator=(const SharedElement& other) const { return *this = static_cast<T>(other); }
  const SharedElement& operator+=(const T& value) const { return *this = static_cast<T>(*this) + value; }
  const SharedElement& operator-=(const T& value) const { return *this = static_cast<T>(*this) - value; }
  const SharedElement& operator*=(const T& value) const { return *this = static_cast<T>(*this) * value; }

 private:
  Machine* machine_;
  int64_t offset_;
};

// `size` elements of shared memory.
template <class T>
class SharedSpan {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) >= SharedMemory::kGranule);

 public:
  SharedSpan() = default;
  SharedSpan(Machine* machine, int64_t offset, int64_t size)
      : machine_(machine), offset_(offset), size_(size) {}

  SharedElement<T> operator[](int64_t i) const {
    if (i < 0 || i >= size_) {
      run_error("uses element {} of a span of {} elements at offset {} of shared memory", i, size_, offset_);
    }
    return {machine_, offset_ + i * static_cast<int64_t>(sizeof(T))};
  }
  // The elements from `first` on.
  SharedSpan operator+(int64_t first) const {
    return {machine_, offset_ + first * static_cast<int64_t>(sizeof(T)), size_ - first};
  }
  // The same memory as another type, such as float4 for four floats.
  template <class U>
  SharedSpan<U> as() const {
    if (offset_ % static_cast<int64_t>(alignof(U)) != 0) {
      run_error("uses offset {} of shared memory as a type that is aligned to {} bytes", offset_, alignof(U));
    }
    return {machine_, offset_, size_ * static_cast<int64_t>(sizeof(T)) / static_cast<int64_t>(sizeof(U))};
  }

 private:
  Machine* machine_ = nullptr;
  int64_t offset_ = 0, size_ = 0;
};

// Hands out the block's dynamic shared memory from its beginning, each span aligned to 16 bytes. Every thread
// makes one and takes the same spans.
class SharedArena {
 public:
  template <class T>
  SharedSpan<T> take(int64_t count) {
    const int64_t offset = next_, bytes = count * static_cast<int64_t>(sizeof(T));
    next_ += (bytes + 15) / 16 * 16;
    if (offset + bytes > static_cast<int64_t>(current_machine->shared().size())) {
      run_error("takes {} bytes at offset {} of shared memory, which has {} bytes", bytes, offset,
                current_machine->shared().size());
    }
    return {current_machine, offset, count};
  }

 private:
  int64_t next_ = 0;
};

}  // namespace trainer::simt
