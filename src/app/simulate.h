// `trainer simulate`: the step of one plan, on a platform that need not be there.
#pragma once

#include <span>
#include <string>

#include "app/config.h"
#include "plan/memory_model.h"
#include "sim/predict.h"

namespace trainer {

struct SimulatedStep {
  int devices = 1;
  double tokens_per_second = 0;
  StepAnalysis step;
  StageMemory memory;        // of the stage that needs most
  int64_t memory_limit = 0;  // the platform's, or device.memory_budget where that is less
  bool fits() const { return memory.total() <= memory_limit; }
  Timeline timeline;  // of one step in the steady state, called 1; of one replica where that stands for all
  int ranks_shown = 1;
};

// `devices`: 0: as many as the config's sizes multiply to. Throws InputError where the plan cannot run.
SimulatedStep simulate_step(const Config& config, const Platform& platform, int devices);

// A self-contained page with the timeline and the memory over it.
std::string simulated_page(const SimulatedStep& simulated, const std::string& title,
                           const std::string& subtitle);

// Returns the exit code.
int simulate_command(std::span<const std::string> arguments);

}  // namespace trainer
