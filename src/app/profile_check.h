// Predictions from a profile held against steps of the predicted plans themselves. Profiles and plans take
// turns, so that a machine that changes its pace does so under both.
#pragma once

#include <string>
#include <vector>

#include "app/machine_profile.h"
#include "app/variant_run.h"

namespace trainer {

// A plan's steps, by round.
struct CheckedPlan {
  std::string config;  // its file
  std::vector<double> measured_seconds, predicted_seconds;

  // Medians over the rounds.
  double step_seconds() const;
  // Of a round's predicted over its measured step, less 1: a pace that changes from round to round is in
  // both.
  double error() const;
};

// `data` as open_training gave it for the config of each plan, resolved in `subjects`. In each round the
// links are measured, then, by micro-batch size and precision, the plans of that size, and the layers before
// and after each of them. Collective; the result counts on rank 0 only.
std::vector<CheckedPlan> check_profile(const MachineProfiler& profiler, Communicator& world,
                                       const std::vector<std::string>& files,
                                       const std::vector<ProfileSubject>& subjects,
                                       const std::vector<TrainingData>& data, const VariantSteps& steps,
                                       int rounds);

// A list of {config, measured_seconds, predicted_seconds, step_seconds, error}.
std::string checked_plans_json(const std::vector<CheckedPlan>& plans);

}  // namespace trainer
