// Which vector instructions the running processor offers. Kernels are compiled once per level, each level in
// its own translation units, and chosen at run time; results may differ between levels in the last bits,
// never within one.
#pragma once

#include <cstdint>
#include <vector>

namespace trainer {

enum class Isa : uint8_t {
  kPlain,  // 4 floats at a time, no fused multiply-add: the base of every target, also of other architectures
  kAvx2,   // 8 floats: AVX2, FMA
  kAvx512,      // 16 floats: AVX-512 F, BW, DQ, VL
  kAvx512Bf16,  // and BF16: products of pairs of bf16
  kAmx,         // and AMX with BF16: products of bf16 in tile registers
};

constexpr Isa kBestOfAll = Isa::kAmx;

// The best level of this processor, or TRAINER_MAX_ISA (a name_of) if the environment has it and it is lower.
// Constant over the life of a process. Throws InputError for a name that is none. kAmx may be used only after
// this has returned it: the system wants to be asked.
Isa best_isa();
const char* name_of(Isa isa);
// Whether products take operands of bf16 as they are.
constexpr bool multiplies_bf16(Isa isa) { return isa >= Isa::kAvx512Bf16; }
// The levels up to best_isa().
std::vector<Isa> available_isas();

}  // namespace trainer
