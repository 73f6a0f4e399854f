// The 27B model on one H800 as LazyTrain publishes it (section 4): what the planner was given, as far as it
// is told, and the schedule it printed.
#pragma once

#include "plan/checkpoint_plan.h"

namespace trainer {

// 64 layers of hidden size 5120, batch 72 of 1,024 tokens in bf16: 0.703 GiB a boundary. Forward time and
// windows are not published; 14 ms is the published objective over 13 recomputed layers, 70 ms what its
// storage traces carry at the published rates. No mandatory traffic, since its windows report none exposed.
CheckpointProblem lazytrain_27b();

// 52 kept boundaries: 30 on the device, 21 in host memory, 1 in storage.
std::vector<BoundaryHome> lazytrain_27b_homes();

}  // namespace trainer
