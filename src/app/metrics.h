// metrics.jsonl: one line per training step, written as the step ends. Floats are written so that they read
// back to the same bits; a value that is not finite is null.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <vector>

#include "base/json.h"
#include "schedule/memory.h"
#include "schedule/timeline.h"

namespace trainer {

// Where one rank's step went: its Forwards and Backwards, and what they waited for. They add up to the step.
struct RankTime {
  double compute = 0;
  ExposedTime exposed;
};

struct StepMetrics {
  int64_t step = 0;              // from 1
  double loss = 0;               // mean over the global batch's valid tokens; NaN where there were none
  double grad_norm = 0;          // before clipping
  double learning_rate = 0;      // the one used in this step's update
  double tokens_per_second = 0;  // of all ranks together
  double step_seconds = 0;
  // T_1F1B: the step's Forwards, Backwards and transfers as they were measured, with all else free. With the
  // exposed parts but bubble and boundary, which it holds, about step_seconds. NaN: not known.
  double main_path_seconds = 0;
  ExposedTime exposed;  // mean over ranks
  std::vector<RankTime> ranks;
  TierBytes memory{};                // largest use during the step, of the rank that used most in all
  int64_t consumed_samples = 0;      // since the start of training, this step included
  bool skipped = false;              // no update was made
  std::optional<double> valid_loss;  // of the evaluation after this step, if there was one
};

Json to_json(const StepMetrics& metrics);

class MetricsFile {
 public:
  // `resumed_step`: the step of the checkpoint that the run goes on from, 0 for a new run. Lines beyond it,
  // and one that a crash cut short, are cut away; the file is replaced whole, so it is never half cut. Throws
  // RunError.
  MetricsFile(std::filesystem::path path, int64_t resumed_step);

  // Appends one line and hands it to the operating system. Throws RunError, naming the path.
  void write(const StepMetrics& metrics);

 private:
  std::filesystem::path path_;
  std::ofstream file_;
};

// The lines of a metrics file in order. A last line without its end is left out. Throws InputError.
std::vector<StepMetrics> read_metrics(const std::filesystem::path& path);

}  // namespace trainer
