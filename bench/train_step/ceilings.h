// What this machine can do at best, measured in the same run as the steps.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "app/backend.h"
#include "comm/communicator.h"
#include "ops/gemm_rate.h"
#include "train_step/arguments.h"

namespace trainer {

class Ceilings {
 public:
  explicit Ceilings(const TrainStepArguments& a);

  // One round: every product of the step's own shapes, then memory.
  void measure();
  // FLOPs per second of the best shape, each of which counts with the median of its rounds.
  double products() const;
  // Bytes per second: the median of the rounds.
  double memory() const;
  Json products_by_shape() const;

  Device& device() { return *backend_.device; }
  std::string machine() const;

 private:
  DType dtype_;
  std::vector<GemmShape> shapes_;
  std::string name_;
  int threads_;
  std::vector<std::unique_ptr<Communicator>> world_;
  RankBackend backend_;
  std::vector<std::vector<double>> rates_;  // by shape, then round
  DeviceMemoryPtr memory_;
  std::vector<double> memory_rates_;
};

}  // namespace trainer
