#include "cpu/tile_table.h"

namespace trainer {

const TileTable& tile_table(Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::kAvx512) return avx512_tiles;
  if (isa == Isa::kAvx2) return avx2_tiles;
#endif
  static_cast<void>(isa);
  return plain_tiles;
}

const TileTable* bf16_tile_table(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAmx) return &amx_tiles;
  if (isa == Isa::kAvx512Bf16) return &avx512_bf16_tiles;
#endif
  static_cast<void>(isa);
  return nullptr;
}

}  // namespace trainer
