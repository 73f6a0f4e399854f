// One measured run of one variant.
#pragma once

#include "app/ablation.h"
#include "app/training_data.h"
#include "app/training_rank.h"

namespace trainer {

// How many steps a run makes: some that are not counted, the measured ones, and one more, so that each of
// those has a successor.
struct VariantSteps {
  int warm_up = 2, measured = 5;
  int total() const { return warm_up + measured + 1; }
};

// Plans the variant without setting it up: fills in program, predicted memory, and whether that is within the
// budget. Collective.
void plan_variant(const TrainingData& data, Communicator& world, AblationResult& result);

// Sets the variant up from its seed, runs it, and adds a round to `result` on rank 0. Collective. Returns the
// plan in words.
std::string run_variant(const TrainingData& data, Communicator& world, const VariantSteps& steps,
                        AblationResult& result);

}  // namespace trainer
