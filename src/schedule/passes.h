// Passes rewrite the program of a step. A mechanism is a pass; leaving it out of the list is its ablation.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "schedule/problem.h"
#include "schedule/step_graph.h"

namespace trainer {

class Pass {
 public:
  virtual ~Pass() = default;
  virtual void apply(StepGraphBuilder& builder, const Problem& problem) const = 0;
};

// "activation_policy": with ActivationPolicy::kCheckpoint a block keeps only its input; what its backward
// reads is recovered right before it. Embedding and head keep everything (the head's backward follows at
// once).
std::unique_ptr<Pass> make_activation_policy();

// "step_end_state": the baseline. Gradient synchronisation, optimizer and refresh of working weights all run
// in one batch after the last backward of the step.
std::unique_ptr<Pass> make_step_end_state();

std::vector<std::string> pass_names();
// Throws InputError naming the nearest pass.
std::unique_ptr<Pass> make_pass(const std::string& name);

// Front end, passes, edges, memory placement.
StepGraph build_step_graph(const Problem& problem);

}  // namespace trainer
