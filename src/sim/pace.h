// Uneven work on virtual time.
#pragma once

#include "sim/platform.h"
#include "sim/simulator.h"

namespace trainer {

// `costs` with the work of each compute lane as long as it takes where the pace is what it was from piece
// `first` on; the pieces follow one another round and round. Ranks beyond those of the pace have that of the
// rank modulo their number.
CostTable at_pace(const StepGraph& graph, CostTable costs, const Pace& pace, size_t first);

}  // namespace trainer
