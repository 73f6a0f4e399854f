// What the terminal shows while a run trains. Only rank 0 has one.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

#include "app/config.h"
#include "app/metrics.h"

namespace trainer {

struct ProgressOptions {
  ProgressStyle style = ProgressStyle::kAuto;  // auto: a bar when `out` is a terminal
  int64_t first_step = 1, total_steps = 1;
  int64_t log_interval = 1;
  double flops_per_token = 0;        // model FLOPs of a training step; 0: utilisation is not shown
  double gemm_flops_per_second = 0;  // of all ranks together
  std::FILE* out = stderr;
};

class Progress {
 public:
  explicit Progress(ProgressOptions options);
  ~Progress();  // leaves the last bar on its own line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // After every step, in order. An evaluation and a skipped step always get a line of their own.
  void step(const StepMetrics& metrics);
  // A whole line of other news; a bar is redrawn below it.
  void note(const std::string& line);

 private:
  std::string summary(const StepMetrics& latest) const;
  void draw(const std::string& bar);

  ProgressOptions options_;
  bool bar_ = false;
  std::string drawn_;
  std::chrono::steady_clock::time_point last_drawn_{};
  // Since the last line or redraw.
  struct Sums {
    double loss = 0, seconds = 0, tokens = 0;
    int64_t losses = 0;
    ExposedTime exposed;
  } sums_;
  double smooth_step_seconds_ = 0;
};

}  // namespace trainer
