// The vector loops with what every target has.
#include "cpu/vector_table.h"

#define TRAINER_ISA plain
#define TRAINER_VECTOR_WIDTH 4
#include "cpu/vector_loops.h"

namespace trainer {

const VectorTable plain_table = plain::kTable;

}  // namespace trainer
