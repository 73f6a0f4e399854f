// Where the time of a simulated step goes.
#pragma once

#include <vector>

#include "schedule/timeline.h"
#include "sim/simulator.h"

namespace trainer {

// step_seconds = main_path + communication + update + prefetch + recovery.
struct StepParts {
  double step_seconds = 0;
  // T_1F1B: the step when only Forward, Backward, Send and Receive take time. All others take none, but still
  // come after what they depend on and meet their peers.
  double main_path = 0;
  // What a step takes longer when these kinds take their time as well, added one after another in this order:
  double communication = 0;  // GradSync, NormSync, GradFold
  double update = 0;         // UpdateShard, GradNorm
  double prefetch = 0;       // PrefetchW
  double recovery = 0;       // Recover, Offload, Reload
};

// A step in the steady state.
struct StepAnalysis : StepParts {
  // From the last Backward of the step on a rank to its first Forward of the next, the longest over the
  // ranks.
  double tail = 0;
  // Share of the compute lanes' time in which they run nothing.
  double bubble_ratio = 0;
  std::vector<double> busy_seconds;  // [lanes] in the step
};

// Simulated steps unless the caller says otherwise: the second last of them counts, since the first has no
// step before it to overlap with, and the last none behind it.
inline constexpr int kStepsToSteadyState = 4;

// `steps`: at least 3. Simulates up to five times; kinds that the graph lacks or that cost nothing are free.
StepAnalysis analyse_step(const StepGraph& graph, const CostTable& costs, int steps = kStepsToSteadyState);
// Parts of the mean step of `steps` without the first, which only sets the scene.
StepParts mean_step_parts(const StepGraph& graph, const CostTable& costs, int steps);
// The step time alone, of one simulation.
double steady_step_seconds(const StepGraph& graph, const CostTable& costs, int steps = kStepsToSteadyState);

// As the runtime records it, training steps counted from `first_step`; with samples of the memory in use on
// devices.
Timeline to_timeline(const StepGraph& graph, const Simulation& simulation, int first_step = 1);

}  // namespace trainer
