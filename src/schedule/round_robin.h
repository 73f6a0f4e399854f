// Front end: round-robin dispatch of stages to devices (RoundPipe, arXiv 2604.27085, section 3). No device
// owns a stage: weights, gradients and what lies between stages are in host memory, and the next stage of a
// round goes to the next device, whatever their numbers.
#pragma once

#include <vector>

#include "schedule/boundary_sets.h"
#include "schedule/problem.h"
#include "schedule/step_graph.h"

namespace trainer {

// Forward and backward are cut differently, as a backward with its recomputation takes about three times as
// long.
struct DispatchStages {
  std::vector<IndexRange> forward;   // layers, from the embedding up
  std::vector<IndexRange> backward;  // [0]: fused, the layers above the last forward stage, head included,
                                     // whose forward is their recomputation; then down to the embedding
  int count() const { return static_cast<int>(forward.size() + backward.size()); }
};

struct RoundRobin {
  DispatchStages stages;
  int devices = 1;        // N, of one rank
  int micro_batches = 0;  // of one round; 0: N. Divides Problem::micro_batches
  bool delayed = false;   // step t computes with what the update of step t - 2 left, so updates are hidden
};

// Throws InputError when the stages do not cover the layers, for rounds that do not divide, tied weights
// (their one gradient would come from two stages) or more than one rank.
//
// Slot i of a step, counted over its rounds, runs on device (g + i) mod N, all micro-batches of the round
// after each other; g is carried over to the next step. The graph is `period` steps, numbered by
// Coordinates::phase, after which g is 0 again. Coordinates::stage counts the slots of a round. The tasks of
// a backward stage: Recover of its layers upwards, which needs the stage's kept input only, then Backward
// downwards.
//
// A slot's weights are copied to its device while the slot before it there computes: by layer, the largest
// first, each in the micro-batch with the least to copy yet. Activations are copied one micro-batch ahead.
void round_robin_dispatch(StepGraphBuilder& builder, const Problem& problem, const RoundRobin& plan);

// Steps until a step's first stage is on device 0 again.
int round_robin_period(int devices, int slots_per_step, bool delayed);

}  // namespace trainer
