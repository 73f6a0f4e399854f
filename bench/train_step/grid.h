// Ranks of this process that train on random tokens.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "app/training_rank.h"
#include "comm/communicator.h"
#include "support/kernel_meter.h"

namespace trainer {

// By rank.
using RankEvents = std::vector<std::vector<TimelineEvent>>;

// The same tokens in every step.
class RandomInputs : public StepInputs {
 public:
  RandomInputs(const Config& config, int64_t vocabulary);
  BatchView micro_batch(int64_t, int index) override;

 private:
  int64_t micro_batch_, sequence_;
  std::vector<int32_t> tokens_, positions_;
};

// A pipeline of single-threaded ranks, each a thread bound to its share of the cores, or one rank on this
// thread.
class Grid {
 public:
  Grid(const std::string& backend, Config config, const ModelConfig& model, int stages, int threads);

  // Makes everything ready and runs the step that is not timed. Returns the predicted bytes of the process,
  // or of its device.
  int64_t start();
  // The seconds of a step.
  double step();

  const Model& model() const { return ranks_.front()->model(); }
  std::string describe() const { return ranks_.front()->describe_plan(); }
  // Processor time in each step of threads that it started: neither this one nor those of the kernels.
  const std::vector<double>& other_seconds() const { return other_seconds_; }
  RankEvents take_events();
  // What the kernels of all ranks did in the timed steps together.
  KernelRecord kernels() const;

 private:
  double run_step();
  void on_every_rank(const std::function<void(size_t)>& body);

  const bool on_host_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::vector<RandomInputs> inputs_;
  std::vector<KernelRecord> records_;
  std::vector<std::unique_ptr<TrainingRank>> ranks_;
  std::vector<double> other_seconds_;
  int64_t steps_ = 0;
};

}  // namespace trainer
