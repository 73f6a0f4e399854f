// What a checkpoint holds: the state of all ranks, and where in the run they stand.
#pragma once

#include <filesystem>

#include "app/training_data.h"
#include "app/training_rank.h"

namespace trainer {

class TrainingState {
 public:
  // All of them outlive this; `rank` is allocated before any state is set.
  TrainingState(const Config& config, const TrainingData& data, TrainingRank& rank, Communicator& world)
      : config_(config), data_(data), rank_(rank), world_(world) {}

  // From model.initialize_from, else at random. Collective.
  void initialize();
  // From the newest good checkpoint in `root`, which is returned; empty: there is none, and nothing changed.
  // Throws InputError when that checkpoint does not belong to this model and data. Collective.
  std::string restore_newest(const std::filesystem::path& root);
  // Makes a checkpoint in `root`, complete or not at all, and removes all but the newest
  // checkpoint.keep_last. Throws RunError, on all ranks, when any of them cannot write. Collective.
  void save(const std::filesystem::path& root);

  // Books that `step` is complete, in order. Throws RunError, on all ranks alike, when too many in a row were
  // not finite.
  void complete(int64_t step, const StepResult& result);
  int64_t step() const { return step_; }  // steps complete

 private:
  // What is found damaged while the state is read; empty: nothing is.
  std::string restore(const std::filesystem::path& checkpoint);
  Json describe() const;

  const Config& config_;
  const TrainingData& data_;
  TrainingRank& rank_;
  Communicator& world_;
  int64_t step_ = 0, consecutive_skips_ = 0;
};

}  // namespace trainer
