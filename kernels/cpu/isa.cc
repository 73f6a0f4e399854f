#include "cpu/isa.h"

#include "cpu/vector_table.h"

namespace trainer {

Isa best_isa() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return Isa::kAvx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Isa::kAvx2;
#endif
  return Isa::kPlain;
}

const char* name_of(Isa isa) {
  switch (isa) {
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
  if (isa == Isa::kAvx512) return avx512_table;
  if (isa == Isa::kAvx2) return avx2_table;
#endif
  static_cast<void>(isa);
  return plain_table;
}

}  // namespace trainer
