// Typed pointers. A Ref owns nothing; shapes travel beside it in the arguments of each operation.
#pragma once

#include <cstddef>
#include <cstdint>

namespace trainer {

enum class DType : uint8_t { kF32, kBF16 };

constexpr size_t size_of(DType type) { return type == DType::kF32 ? 4 : 2; }
constexpr const char* name_of(DType type) { return type == DType::kF32 ? "fp32" : "bf16"; }

struct ConstRef {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  explicit operator bool() const { return data != nullptr; }
  ConstRef at(int64_t elements) const {
    return {static_cast<const std::byte*>(data) + elements * static_cast<int64_t>(size_of(dtype)), dtype};
  }
};

struct Ref {
  void* data = nullptr;
  DType dtype = DType::kF32;
  explicit operator bool() const { return data != nullptr; }
  operator ConstRef() const { return {data, dtype}; }
  Ref at(int64_t elements) const {
    return {static_cast<std::byte*>(data) + elements * static_cast<int64_t>(size_of(dtype)), dtype};
  }
  float* f32() const { return static_cast<float*>(data); }
};

inline Ref ref(float* data) { return {data, DType::kF32}; }
inline ConstRef ref(const float* data) { return {data, DType::kF32}; }

}  // namespace trainer
