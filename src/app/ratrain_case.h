// RATrain's published plans (arXiv 2606.10415) as problems of ours.
#pragma once

#include <string>

#include "plan/memory_model.h"
#include "plan/plan_choice.h"
#include "sim/platform.h"
#include "sim/predict.h"

namespace trainer {

enum class RatrainMethod : uint8_t {
  kFull,                // all three mechanisms
  kBackwardCheckpoint,  // recovery at the moment of the backward
  kTuned,               // that, and neither mechanism for states
  kFullSave,
  kGatheredOnce,  // all weights of a step gathered at its begin, in all else the first
  kNoRecoveryAhead,  // the ablations of Figure 11
  kNoUpdatePrefetch,
  kNoLayerStatePipeline
};

struct RatrainCase {
  std::string model;  // of configs/models
  int stages = 1, replicas = 1, tensor_ranks = 1, zero_stage = 2;
  int micro_batches = 1;  // A
  RatrainMethod method = RatrainMethod::kFull;
  int micro_batch_size = 1;  // b, sequences

  int clusters() const { return stages * replicas * tensor_ranks; }
  bool operator==(const RatrainCase&) const = default;
};

// Stages are even in time; where those do not fit 20 GiB, even in memory.
class RatrainModel {
 public:
  // `configs` has the folders models and platforms.
  explicit RatrainModel(std::string configs) : configs_(std::move(configs)) {}

  // Gradients are summed once a step, as the paper's layer-state pipeline has it; `sharded`: with every
  // micro-batch.
  Problem timed_problem(const RatrainCase& c, bool sharded = false);
  // Gradients are sharded while they accumulate, in two bytes: its memory figures fit nothing else.
  Problem memory_problem(const RatrainCase& c);
  // Of the stage that needs most.
  StageMemory memory(const RatrainCase& c);
  StepAnalysis step(const RatrainCase& c, const Platform& platform, bool sharded = false);

  // Of a model in bf16 and sequences of 2,048 tokens, for the planner.
  PlanRequest request(const std::string& name, int devices, int64_t batch, int64_t memory_budget);

  const std::string& configs() const { return configs_; }

 private:
  const PlanModel& model(const RatrainCase& c);
  Problem problem(const RatrainCase& c, const std::vector<int64_t>& stage_layers, bool sharded,
                  int64_t gradient_bytes);

  std::string configs_;
  std::map<std::tuple<std::string, int, int>, PlanModel> models_;  // by name, parts and micro-batch size
  std::map<std::string, std::vector<int64_t>> splits_;  // by case
};

}  // namespace trainer
