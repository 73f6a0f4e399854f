// One device, its host and its storage, as the planner of kept boundaries and the simulation of its schedules
// see them: both read the same rates, so what the one promises the other can be held to.
#pragma once

#include <cstdint>

#include "plan/checkpoint_plan.h"
#include "schedule/problem.h"
#include "sim/simulator.h"

namespace trainer {

struct StreamMachine {
  double flops_per_second = 0;                    // that layers reach
  double host_to_device = 0, device_to_host = 0;  // bytes per second
  double storage_read = 0, storage_write = 0;     // bytes per second; 0: there is no storage
  // Optimizer on the host: bytes of masters, moments and gradients read and written per second; 0: takes no
  // time.
  double host_update = 0;
};

// For boundaries alone, as in CheckpointProblem.
struct BoundaryBudgets {
  int64_t device = 0, host = 0, storage = 0;  // bytes
};

// From the catalogues of `problem`, whose blocks are the layers of the plan. Under a layer's forward the
// weights of one layer come up; under its recovery and backward, its weights come up and its gradient goes
// down; between the passes the head computes. A layer recomputes in the time of its forward or of its
// weights' way up, whichever is longer. Tie-breaks are CheckpointProblem's defaults.
CheckpointProblem checkpoint_problem(const Problem& problem, const StreamMachine& machine,
                                     const BoundaryBudgets& budgets);

// Costs of a graph that layer_stream made of `problem`.
CostTable stream_costs(const StepGraph& graph, const Problem& problem, const StreamMachine& machine);

}  // namespace trainer
