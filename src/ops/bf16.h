// bfloat16 as bits: the upper half of a float.
#pragma once

#include <bit>
#include <cstdint>

namespace trainer {

constexpr float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// Round to nearest, ties to even. Overflow gives infinity; NaN stays NaN (quiet, sign and upper payload
// kept).
constexpr uint16_t float_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace trainer
