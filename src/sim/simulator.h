// Executes a step graph on virtual time: the dispatcher of the runtime, a clock that jumps from event to
// event, and a table of costs instead of kernels.
#pragma once

#include <vector>

#include "schedule/dispatcher.h"
#include "schedule/step_graph.h"

namespace trainer {

// Seconds that each task of a graph takes alone on its lane, by TaskId.
struct CostTable {
  std::vector<double> seconds;
};

struct TaskRun {
  Instance instance;
  double begin = 0, end = 0;  // seconds since the start of step 0
};

struct Simulation {
  std::vector<TaskRun> runs;  // in the order of their ends
  double end = 0;
};

// Runs `steps` steps. Throws RunError naming the blocked tasks when the program cannot go on.
Simulation simulate(const StepGraph& graph, const CostTable& costs, int steps = 1);

}  // namespace trainer
