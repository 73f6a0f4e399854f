// The assumption that recovery has units of its own beside those of the main path.
#pragma once

#include "schedule/step_graph.h"

namespace trainer {

// Moves every Recover that may run ahead of its backward (pass forward_side_recovery) from the compute lane
// to a lane of its own, where they run one after another, with temporary memory of their own that is not in
// the placed arenas. For simulation alone: programs that run have one compute lane.
StepGraph with_recovery_lane(StepGraph graph);

}  // namespace trainer
