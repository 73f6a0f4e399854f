// What this machine can do at best, measured in the same run as the steps.
#pragma once

#include <array>
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

  // One round: every product of the step's own shapes, all of them in turn, then memory.
  void measure();
  // FLOPs per second of the best shape and direction, each of which counts with the median of its rounds.
  double products() const;
  // Of all products of a step, in turn and without anything else.
  double products_in_turn() const;
  // Bytes per second: the median of the rounds.
  double memory() const;
  Json products_by_shape() const;

  Device& device() { return *backend_.device; }
  std::string machine() const;

 private:
  double products_of(size_t shape) const;

  DType dtype_;
  std::vector<GemmShape> shapes_;  // the classifier's last
  double layers_, chunks_;         // how often a micro-batch has those of a layer, and the classifier's
  std::string name_;
  int threads_;
  std::vector<std::unique_ptr<Communicator>> world_;
  RankBackend backend_;
  std::vector<std::array<std::vector<double>, 3>> rates_;  // by shape, direction, round
  std::vector<double> in_turn_;                            // by round
  DeviceMemoryPtr memory_;
  std::vector<double> memory_rates_;
};

}  // namespace trainer
