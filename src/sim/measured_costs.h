// Costs of a program from a timeline of the same or a similar one: cost fitting by what ran.
#pragma once

#include "schedule/problem.h"
#include "schedule/timeline.h"
#include "sim/simulator.h"

namespace trainer {

// Seconds of each task of `graph`: the median length of the timeline's events of its kind, rank and layer; of
// its kind and layer on any rank where there are none; 0 where there are none at all. Receives cost nothing
// and a collective what its shortest run took, since theirs are mostly waiting; a Send costs its shortest run
// too. Ranks of a collective meet. `problem`: that `graph` was built from.
CostTable measured_costs(const StepGraph& graph, const Problem& problem, const Timeline& timeline);

struct MeasuredProgram {
  StepGraph graph;
  CostTable costs;
};
// The program of all ranks, the ones that `problem` names or not, with these costs.
MeasuredProgram measured_program(Problem problem, const Timeline& timeline);

// `costs`, which measured_costs gave for `graph`, with `count` steps from training step `first` on as they
// were, each task of a step as long as it took then: a collective from when its last rank came, a Send from
// when it could begin and its Receive was posted until that was done. A task that the timeline lacks costs
// what it does in `costs`.
CostTable replayed_costs(const StepGraph& graph, CostTable costs, const Timeline& timeline, int first,
                         int count);

}  // namespace trainer
