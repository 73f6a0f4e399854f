#include "cpu/isa.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "base/error.h"
#include "cpu/vector_table.h"

namespace trainer {
namespace {

#if defined(__x86_64__)

// A flag of the leaf of structured extended features (Intel's manual, CPUID).
bool extended_feature(unsigned subleaf, unsigned eax_bits, unsigned edx_bits) {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid_count(7, subleaf, &eax, &ebx, &ecx, &edx)) return false;
  return (eax & eax_bits) == eax_bits && (edx & edx_bits) == edx_bits;
}

// Whether the processor has AMX with BF16 and the system lets this process use the tile registers: it wants
// to be asked, once, before the first use on any thread.
bool tile_registers_granted() {
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  if (!extended_feature(0, 0, kAmxBf16 | kAmxTile)) return false;
#if defined(__linux__)
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
  return false;
#endif
}

// Intel's processors with AMX multiply pairs of bf16 by AVX-512 at half the rate of fp32: where the tile
// registers are not to be had, widening is faster. They are those that have AVX512_FP16, too.
bool avx512_bf16_is_slow() {
  constexpr unsigned kAvx512Fp16 = 1u << 23;
  return __builtin_cpu_is("intel") && extended_feature(0, 0, kAvx512Fp16);
}

Isa find_best_isa(Isa most) {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    constexpr unsigned kAvx512Bf16 = 1u << 5;
    if (!extended_feature(1, kAvx512Bf16, 0)) return Isa::kAvx512;
    if (most != Isa::kAmx) return Isa::kAvx512Bf16;
    if (tile_registers_granted()) return Isa::kAmx;
    return avx512_bf16_is_slow() ? Isa::kAvx512 : Isa::kAvx512Bf16;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Isa::kAvx2;
  return Isa::kPlain;
}

#else

Isa find_best_isa(Isa) { return Isa::kPlain; }

#endif

constexpr const char* kLimit = "TRAINER_MAX_ISA";

// The best level that the environment allows.
Isa limit() {
  const char* name = std::getenv(kLimit);
  if (!name || !*name) return kBestOfAll;
  std::string names;
  for (int isa = 0; isa <= static_cast<int>(kBestOfAll); ++isa) {
    const char* known = name_of(static_cast<Isa>(isa));
    if (std::string_view(name) == known) return static_cast<Isa>(isa);
    names += fmt::format("{}{}", isa == 0 ? "" : ", ", known);
  }
  input_error("the environment variable {} is '{}'; the levels of instructions are {}", kLimit, name, names);
}

}  // namespace

Isa best_isa() {
  static const Isa best = [] {
    const Isa most = limit();
    return std::min(find_best_isa(most), most);
  }();
  return best;
}

std::vector<Isa> available_isas() {
  std::vector<Isa> all;
  for (int isa = 0; isa <= static_cast<int>(best_isa()); ++isa) all.push_back(static_cast<Isa>(isa));
  return all;
}

const char* name_of(Isa isa) {
  switch (isa) {
    case Isa::kAmx:
      return "amx";
    case Isa::kAvx512Bf16:
      return "avx512_bf16";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kPlain:
      break;
  }
  return "plain";
}

const VectorTable& vector_table(Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::kAvx512Bf16) return avx512_bf16_table;
  if (isa == Isa::kAvx512) return avx512_table;
  if (isa == Isa::kAvx2) return avx2_table;
#endif
  static_cast<void>(isa);
  return plain_table;
}

}  // namespace trainer
