// The training loop of one rank: steps in chunks, evaluation, checkpoints, and on rank 0 all that the user
// sees.
#pragma once

#include <filesystem>
#include <memory>

#include "app/main_path_replay.h"
#include "app/metrics.h"
#include "app/progress.h"
#include "app/run_files.h"
#include "app/start_times.h"
#include "app/tensorboard.h"
#include "app/training_data.h"
#include "app/training_state.h"

namespace trainer {

struct JobSummary {
  int64_t steps = 0;             // of the whole run
  double train_seconds = 0;      // of this process's steps, evaluation and saving included
  double tokens_per_second = 0;  // median over this process's steps
  double last_loss = 0;
  std::optional<double> valid_loss;
  int64_t predicted_memory = 0, peak_memory = 0;  // bytes, the largest of any rank
};

class TrainingJob {
 public:
  // `directory` exists. `gemm_flops_per_second`: of all ranks together, 0 = unknown. Rank 0 writes the run's
  // files.
  TrainingJob(const Config& config, TrainingData data, RankBackend backend, Communicator& world,
              const std::filesystem::path& directory, double gemm_flops_per_second);
  ~TrainingJob();

  // Allocates and sets the state: from the newest checkpoint of the run when `resume`, else from
  // model.initialize_from, else at random. Collective. `times`: books what it took.
  void prepare(bool resume, StartTimes* times = nullptr);
  // Trains to config.training.steps, or until a stop was asked for. Collective.
  JobSummary train();

  TrainingRank& rank() { return *rank_; }

  // Asks every job of this process to save and stop at the end of a step; safe in a signal handler.
  static void request_stop();

 private:
  int next_chunk(int64_t done, double step_seconds) const;
  void record_chunk(int64_t first, int count, double chunk_begin);
  void write_plan(const MemoryPlan& plan);
  void write_traces();
  void write_simulated_step(const Timeline& measured);
  void note_skip(const StepResult& result, int64_t step);
  void publish(const StepMetrics& metrics);
  void finish_save_before_failing();
  void plan_background_saves();

  Config config_;
  TrainingData data_;
  Communicator& world_;
  RunFiles files_;
  std::filesystem::path directory_;
  double gemm_flops_per_second_;
  std::unique_ptr<TrainingRank> rank_;
  TrainingState state_;
  MemoryPlan memory_plan_;
  bool background_saves_ = false;
  std::optional<MainPathReplay> replay_;  // rank 0
  std::optional<MetricsFile> metrics_;
  std::optional<TensorBoardWriter> tensorboard_;
  std::optional<Progress> progress_;
  std::vector<double> step_seconds_;
  JobSummary summary_;
  std::optional<StepMetrics>
      pending_;  // the chunk's last step, until it is known whether an evaluation follows
};

}  // namespace trainer
