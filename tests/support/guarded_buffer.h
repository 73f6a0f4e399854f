// Memory of an exact size: filled with a pattern that reads as NaN, followed by bytes that must stay as they
// are.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#include <span>

#include "base/error.h"
#include "ops/tensor.h"

namespace trainer {

class GuardedBuffer {
 public:
  GuardedBuffer() = default;
  explicit GuardedBuffer(int64_t bytes) : size_(static_cast<size_t>(bytes)) {
    data_ = static_cast<std::byte*>(std::aligned_alloc(64, (size_ + kGuard + 63) / 64 * 64));
    if (!data_) throw std::bad_alloc();
    spoil();
    std::memset(data_ + size_, kGuardValue, kGuard);
  }
  GuardedBuffer(GuardedBuffer&& other) noexcept { *this = std::move(other); }
  GuardedBuffer& operator=(GuardedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~GuardedBuffer() { std::free(data_); }

  void spoil() { std::memset(data_, 0xFF, size_); }
  void zero() { std::memset(data_, 0, size_); }
  // Throws when something was written behind the end.
  void check(const char* what) const {
    for (size_t i = 0; i < kGuard; ++i)
      require(data_[size_ + i] == std::byte{kGuardValue}, "{}: byte {} behind the end was written", what, i);
  }

  size_t size() const { return size_; }
  std::span<std::byte> bytes() const { return {data_, size_}; }
  Ref as(DType dtype) const { return {data_, dtype}; }
  float* f32() const { return reinterpret_cast<float*>(data_); }

 private:
  static constexpr size_t kGuard = 64;
  static constexpr unsigned char kGuardValue = 0xA5;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace trainer
