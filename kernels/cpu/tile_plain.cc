// The tiles with what every target has.
#include "cpu/tile_table.h"

#define TRAINER_ISA plain
#define TRAINER_VECTOR_WIDTH 4
#include "cpu/tile_softmax.h"

namespace trainer {

const TileTable plain_tiles = plain::kTileTable;

}  // namespace trainer
