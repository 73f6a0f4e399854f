// The time of a plan by a closed form, to rank many before the best are simulated.
#pragma once

#include <vector>

#include "plan/plan_choice.h"
#include "sim/cost_model.h"
#include "sim/step_analysis.h"

namespace trainer {

// Of one micro-batch on one device, by layer; taken from the cost model of a program of one stage. Of a
// layer cut over a tensor-parallel group, with what it waits for its peers.
struct LayerSeconds {
  std::vector<double> forward, backward, recover;
  std::vector<double> update;   // of all parameters of the layer
  std::vector<double> refresh;  // working weights from the master copy, likewise
};
LayerSeconds layer_seconds(const PlanRequest& request, const PlanModel& model, int tensor_ranks,
                           ActivationPolicy activation, const Platform& platform);

// 1F1B by its slowest stage, with fill and drain; state tasks of the slowest stage as far as backward and
// next forward do not cover them.
StepParts estimate_step(const PlanRequest& request, const PlanModel& model, const PlanChoice& choice,
                        const LayerSeconds& seconds, const Platform& platform);

}  // namespace trainer
