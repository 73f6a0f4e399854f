// Cuts a model into forward and backward stages for round-robin dispatch (RoundPipe, arXiv 2604.27085,
// section 3).
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/round_robin.h"

namespace trainer {

// Of one transformer block, or of the head.
struct StageLayerCost {
  double forward = 0,
         backward = 0;         // seconds of one micro-batch; recomputation, which costs `forward`, excluded
  int64_t weight_bytes = 0;    // copied to the device for either direction
  int64_t gradient_bytes = 0;  // of what is trained; on the device for the backward
};

enum class PartitionObjective {
  kStepTime,     // (M S + N (N - 1)) t_max over every t_max that some stage can have: the paper's
  kSlowestLayer  // max(S, least_stages) t_max, t_max within 10 % above the slowest layer: the published
                 // code's
};

struct PartitionProblem {
  std::vector<StageLayerCost>
      layers;  // blocks from below, then the head; the embedding goes with the first block
  int devices = 1, micro_batches = 1;  // N, M
  PartitionObjective objective = PartitionObjective::kStepTime;
  int least_stages = 1;
  int64_t memory_limit = 0;  // bytes of one stage; 0: none
};

struct StagePartition {
  std::vector<int> forward;   // number of layers of each stage, from below
  std::vector<int> backward;  // from above; [0]: fused, the head and blocks below it
  double slowest = 0;         // seconds of the slowest stage
  double objective = 0;       // in seconds, as PartitionObjective says
  bool limit_raised = false;  // one layer alone needs more memory than the limit, so that became the limit

  int stages() const { return static_cast<int>(forward.size() + backward.size()); }
};

// For every t_max: as many layers as fit into the fused stage, from the head down, then as few forward and
// backward stages as hold the rest; that is the least S. Of the partitions with these numbers of stages the
// most even one (least squares; the larger stages nearer to the head) is returned, ties go to the smaller
// t_max. Throws InputError for a model without a head.
StagePartition partition_stages(const PartitionProblem& problem);

// The value that partition_stages minimises, of any partition of `problem`. `slowest`: seconds of its slowest
// stage.
double partition_objective(const PartitionProblem& problem, int stages, double slowest);

// Seconds of the slowest stage.
double slowest_stage(const PartitionProblem& problem, const std::vector<int>& forward,
                     const std::vector<int>& backward);

// As layers of a Problem whose layer 0 is the embedding.
DispatchStages dispatch_stages(const std::vector<int>& forward, const std::vector<int>& backward);

}  // namespace trainer
