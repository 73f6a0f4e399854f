// Front end: non-interleaved one-forward-one-backward (PipeDream-Flush, as Megatron-LM runs it). One stage is
// the same code.
#pragma once

#include "schedule/problem.h"
#include "schedule/step_graph.h"

namespace trainer {

// Boundary messages carry the sender's waiting beside the activation, so that it is booked at its cause.
inline constexpr int64_t kBoundaryTrailerBytes = 64;

// One slot of a stage's main path.
struct Slot {
  bool forward = true;
  int micro_batch = 0;
};
std::vector<Slot> one_f_one_b_slots(int stages, int stage, int micro_batches, bool forward_only = false);

// Writes the main path of every rank to build: receives, forwards with all saved tensors kept, backwards,
// sends, and the folds of virtual ranks' gradients. Receives stand one slot ahead of their use, so they are
// posted early.
void one_f_one_b(StepGraphBuilder& builder, const Problem& problem);

}  // namespace trainer
