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

// "layer_state_pipeline": a layer's state tasks may start when its gradient is complete, under the backward
// passes of the layers below it, instead of in one batch after the last backward of the step.
std::unique_ptr<Pass> make_layer_state_pipeline();

// "update_prefetch": the next step's forward of a layer waits for that layer's weights alone, instead of for
// all of the rank's; updates that are needed first run first.
std::unique_ptr<Pass> make_update_prefetch();

// "forward_side_recovery": what a backward needs is recovered in gaps of the main path before it, into as
// many buffers as Problem::recovery_buffers says, instead of at the moment the backward could start. A
// recovery that found no gap is done by its backward.
std::unique_ptr<Pass> make_forward_side_recovery();

// "transfer_priority": gradients and weights on their way between replicas let transfers between stages pass:
// no chunk of theirs starts while one is under way.
std::unique_ptr<Pass> make_transfer_priority();

std::vector<std::string> pass_names();
// Throws InputError naming the nearest pass.
std::unique_ptr<Pass> make_pass(const std::string& name);

// Front end, activation policy, state tasks, passes, edges, memory placement.
StepGraph build_step_graph(const Problem& problem);

}  // namespace trainer
