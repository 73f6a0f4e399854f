#include "app/training_state.h"

#include <utility>

#include "app/agreement.h"
#include "base/error.h"

namespace trainer {

void TrainingState::initialize() {
  if (config_.model.initialize_from.empty()) return together(world_, [&] { rank_.initialize_random(); });
  together(world_, [&] {
    const auto source = open_model_source(config_.model.initialize_from);
    if (world_.rank() == 0) source->check(parameters_of(rank_.model()));
    rank_.read_weights(*source);
  });
  rank_.refresh_working_weights();
}

std::string TrainingState::restore_newest(const std::filesystem::path& root) {
  std::optional<CheckpointSearch> search;
  if (world_.rank() == 0) search.emplace(root);
  for (;;) {
    const std::string found = from_first_rank(world_, [&] {
      const auto next = search->next();
      return next ? next->string() : std::string();
    });
    if (found.empty()) return found;
    const std::string damage = restore(found);
    if (search && damage.empty()) search->warn_of_interrupted();
    if (damage.empty()) return found;
    if (search) search->pass_over(damage);
  }
}

std::string TrainingState::restore(const std::filesystem::path& directory) {
  std::optional<CheckpointReader> checkpoint;
  const std::string where = directory.string();
  together(world_, [&] {
    checkpoint.emplace(directory);
    const std::string order = json_string(checkpoint->state(), "data_fingerprint", where);
    if (order != fmt::format("{:016x}", data_.train->fingerprint()))
      input_error(
          "{} was made with samples in another order (data, split, sequence_length, seed, or so many more "
          "steps that the "
          "number of epochs changed); resuming would repeat or skip data. Restore those keys, or start a new "
          "run "
          "with model.initialize_from",
          where);
  });
  // Both read the same bytes at about the same time, so that the disk brings them once.
  std::string damage;
  std::exception_ptr failure;
  {
    const std::jthread verification([&] {
      try {
        checkpoint->verify(static_cast<size_t>(world_.rank()), static_cast<size_t>(world_.size()));
      } catch (const std::exception& e) {
        damage = e.what();
      }
    });
    try {
      rank_.read_state(*checkpoint);
    } catch (...) {
      failure = std::current_exception();
    }
  }
  for (const std::string& found : all_gather_bytes(world_, damage))
    if (!found.empty()) return found;
  together(world_, [&] {
    if (failure) std::rethrow_exception(failure);
  });
  rank_.refresh_working_weights();
  step_ = checkpoint->step();
  consecutive_skips_ = json_integer(checkpoint->state(), "consecutive_skips", where, 0);
  return {};
}

Json TrainingState::describe() const {
  Json state;
  state["model"] = model_config_to_hugging_face(data_.model);
  state["updates_done"] = rank_.updates_done();
  state["consecutive_skips"] = consecutive_skips_;
  state["data_fingerprint"] = fmt::format("{:016x}", data_.train->fingerprint());
  state["config"] = config_to_json(config_);
  return state;
}

TrainingState::Begun TrainingState::begin(const std::filesystem::path& root) {
  finish_save();
  if (removal_.joinable()) removal_.join();
  const std::string directory =
      from_first_rank(world_, [&] { return begin_checkpoint(root, step_).string(); });
  return {root, directory, {step_, step_ * config_.training.global_batch_size, describe()}};
}

template <class Write>
void TrainingState::complete_save(const Begun& begun, Write&& write) {
  // A rank that cannot write must not leave the others waiting, nor the old checkpoint replaced.
  try {
    together(world_, write);
  } catch (const Error& error) {
    if (world_.rank() == 0) abandon_checkpoint(begun.directory);
    run_error("step {} could not be saved: {}", begun.state.step, error.what());
  }
  together(world_, [&] {
    if (world_.rank() != 0) return;
    std::vector<PartInfo> parts;
    for (int r = 0; r < world_.size(); ++r) parts.push_back(read_part_info(begun.directory, r));
    finish_checkpoint(begun.directory, parts, begun.state);
    removal_ = std::jthread(
        [retired = retire_checkpoints(begun.root, static_cast<int>(config_.checkpoint.keep_last))] {
          for (const auto& folder : retired) abandon_checkpoint(folder);
        });
  });
}

void TrainingState::save(const std::filesystem::path& root) {
  const Begun begun = begin(root);
  complete_save(begun, [&] { write_part(begun.directory, world_.rank(), rank_.checkpoint_tensors()); });
}

void TrainingState::expect_background_saves() {
  if (rank_.state_on_host()) background_.reserve(static_cast<size_t>(rank_.checkpoint_bytes()));
}

void TrainingState::begin_save(const std::filesystem::path& root) {
  begun_ = begin(root);
  try {
    together(world_, [&] {
      background_.start(begun_->directory, world_.rank(), rank_.checkpoint_tensors(), rank_.threads());
    });
  } catch (...) {
    begun_.reset();
    throw;
  }
}

void TrainingState::finish_save() {
  if (!begun_) return;
  const Begun begun = *std::exchange(begun_, std::nullopt);
  complete_save(begun, [&] { background_.finish(); });
}

void TrainingState::complete(int64_t step, const StepResult& result) {
  step_ = step;
  if (result.valid_tokens == 0) return;  // says nothing of whether the numbers have gone wrong
  consecutive_skips_ = result.skipped ? consecutive_skips_ + 1 : 0;
  if (consecutive_skips_ >= config_.optimizer.max_consecutive_skips)
    run_error(
        "loss or gradient norm was not finite in {} steps in a row, the last being step {} (norm {}); none "
        "of "
        "them changed anything. Go on from an earlier checkpoint with a lower optimizer.lr, or look at the "
        "data "
        "of these steps",
        consecutive_skips_, step, result.gradient_norm);
}

}  // namespace trainer
