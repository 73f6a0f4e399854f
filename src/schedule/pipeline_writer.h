// What the pipeline front ends share: each says in which order a rank runs its stages and micro-batches, and
// the writer makes the tasks, buffers and transfers of it.
#pragma once

#include <functional>
#include <vector>

#include "schedule/problem.h"
#include "schedule/step_graph.h"

namespace trainer {

// Boundary messages carry the sender's waiting beside the activation, so that it is booked at its cause.
inline constexpr int64_t kBoundaryTrailerBytes = 64;

// One slot of a rank's main path: a stage's forward or backward of one micro-batch.
struct Slot {
  bool forward = true;
  int micro_batch = 0;
  int stage = 0;
  bool operator==(const Slot&) const = default;
};

// v: stages of one pipeline rank. Stage s of Problem::first_layer, which has v P + 1 entries, is on pipeline
// rank s mod P; neighbouring stages are on different ranks, or P = 1.
int stages_per_rank(const Problem& problem);

// The slots of a pipeline rank, given the rank.
using PipelineSlots = std::function<std::vector<Slot>(int pipeline_rank)>;

// Writes the main path of every rank to build: receives, forwards with all saved tensors kept, backwards,
// sends, and the folds of virtual ranks' gradients. Receives stand one slot ahead of their use, so they are
// posted early. With several virtual ranks, the backwards of every stage must come in the order of the
// micro-batches.
void write_pipeline(StepGraphBuilder& builder, const Problem& problem, const PipelineSlots& slots);

}  // namespace trainer
