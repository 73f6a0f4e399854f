// From a plan to its predicted step.
#pragma once

#include <string>

#include "schedule/problem.h"
#include "sim/cost_model.h"
#include "sim/step_analysis.h"

namespace trainer {

// Data-parallel replicas do the same at the same time, so one of them can stand for all: collectives cost
// what they cost for the full group, and shared links are divided among those that share them. Why it cannot
// here, as replicas lie differently over the nodes; empty: it can. Shards that differ in length by a norm
// block or a parameter count as the first replica's.
std::string why_not_foldable(const Problem& problem, const Platform& platform);
// The problem with the first replica of each stage to build.
Problem folded(Problem problem);

struct Prediction {
  Problem problem;  // folded, if it could be
  StepGraph graph;
  CostTable costs;
  StepAnalysis step;
};
// Builds the graph, of one replica per stage where that can stand for all, and analyses a step. The ranks
// that `problem` names to build are not looked at. Where the platform is uneven, the costs are those of the
// pace at which the step takes the median time, of some that the platform was found at.
Prediction predict_step(const Problem& problem, const Platform& platform, int steps = kStepsToSteadyState);

}  // namespace trainer
