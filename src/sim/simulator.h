// Executes a step graph on virtual time: the dispatcher of the runtime, a clock that jumps from event to
// event, and a table of costs instead of kernels.
#pragma once

#include <vector>

#include "schedule/dispatcher.h"
#include "schedule/step_graph.h"

namespace trainer {

// What each task of a graph costs. A task first takes its `seconds`, then moves its `bytes` at its `rate` at
// most. The lanes of one link group that move bytes at the same time share the group's rate: max-min fair,
// settled anew whenever one of them begins or ends.
struct CostTable {
  std::vector<double> seconds;  // [tasks] kernels, latency: what no other lane slows down
  std::vector<double> bytes;    // [tasks] moved after that; empty: none
  std::vector<double> rate;     // [tasks] bytes per second of the task alone; above 0 where it moves bytes
  // [tasks] Tasks of one number (kNone: by itself) begin together, when the last of them could begin, and end
  // together, when the last of them is done: the ranks of a collective. Empty: none.
  std::vector<int> meeting;
  std::vector<int> link_group;     // [lanes]; empty: as the graph's lanes say. kNone: alone
  std::vector<double> group_rate;  // [link groups] bytes per second that a group's lanes share
  std::vector<double> lane_weight = {};  // [lanes] of a lane's share of its group, above 0; empty: 1 each
  // [steps][tasks] Seconds in single steps, from step 0, where steps differ; later ones take `seconds`.
  std::vector<std::vector<double>> seconds_in_step = {};
};

// Of one instance; a task it has absorbed has no run of its own.
struct TaskRun {
  Instance instance;
  double begin = 0, end = 0;  // seconds since the start of step 0
};

struct Simulation {
  std::vector<TaskRun> runs;  // in the order of their ends
  double end = 0;
};

// Runs `steps` steps. A Send begins once the peer's Receive, where the graph has it, is posted. Throws
// RunError naming the blocked tasks when the program cannot go on.
Simulation simulate(const StepGraph& graph, const CostTable& costs, int steps = 1);

}  // namespace trainer
