// What a checkpoint holds: the state of all ranks, and where in the run they stand.
#pragma once

#include <filesystem>
#include <thread>

#include "app/training_data.h"
#include "app/training_rank.h"
#include "checkpoint/background_part.h"

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

  // Saves in the background are to come: what they need is made ready beside the first steps.
  void expect_background_saves();
  // The same in the background: returns when the state is copied, and training may go on. The checkpoint is
  // complete, and counts, once `finish_save` has returned. One at a time: the next save, of either kind,
  // finishes it first. Collective.
  void begin_save(const std::filesystem::path& root);
  // Whether this rank still writes its part.
  bool writing() const { return background_.writing(); }
  // Waits for all ranks' parts and completes the checkpoint; does nothing when none was begun. Throws as
  // `save` does. Collective.
  void finish_save();

  // Books that `step` is complete, in order. Throws RunError, on all ranks alike, when too many in a row were
  // not finite.
  void complete(int64_t step, const StepResult& result);
  int64_t step() const { return step_; }  // steps complete

 private:
  // What is found damaged while the state is read; empty: nothing is.
  std::string restore(const std::filesystem::path& checkpoint);
  // A checkpoint that is not yet complete.
  struct Begun {
    std::filesystem::path root, directory;
    CheckpointState state;
  };
  Json describe() const;
  Begun begin(const std::filesystem::path& root);
  // Collective. `write` is what this rank does for its part to be on disk.
  template <class Write>
  void complete_save(const Begun& begun, Write&& write);

  const Config& config_;
  const TrainingData& data_;
  TrainingRank& rank_;
  Communicator& world_;
  int64_t step_ = 0, consecutive_skips_ = 0;
  BackgroundPart background_;
  std::optional<Begun> begun_;
  std::jthread removal_;  // of old checkpoints
};

}  // namespace trainer
