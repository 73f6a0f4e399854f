// Front end: one device through which the layers of a model stream (LazyTrain, arXiv 2608.11919, on a
// MegaTrain-style executor, 2604.05091). Blocks' weights, all optimizer state and all gradients are in host
// memory; which boundaries between blocks stay, leave or are recomputed is a schedule made beforehand.
#pragma once

#include "schedule/checkpoint_schedule.h"
#include "schedule/problem.h"
#include "schedule/step_graph.h"

namespace trainer {

struct LayerStream {
  CheckpointSchedule
      schedule;  // layer j of it is block j + 1 of the problem, boundary i the output of layer i
  // An edge's recompute runs its last layer too, whose output is there already: for comparison with executors
  // that do.
  bool recompute_ends = false;
};

// Throws InputError when the schedule is not one of this model, for more than one rank or virtual rank, and
// for forward_only problems.
//
// A block's weights are copied into one of two slots before each of its passes (forward, recompute,
// backward), unless a slot still holds them. Its backward is a Recover of all that it saves and the Backward;
// its gradient goes into one of two slots and down to host memory, where later micro-batches are added to it.
// Recomputed boundaries are written by Recover tasks with an output and nothing saved. Embedding and head
// stay on the device and are refreshed after their update. Updates run on host_compute in forward order, so
// that the next step begins while later layers are updated.
//
// The bytes of a boundary that travel in a window are one task each, in the order of `index`: Offload on
// device_to_host or storage_write behind the forward of the window's layer, Reload on storage_read or
// host_to_device before its backward.
void layer_stream(StepGraphBuilder& builder, const Problem& problem, const LayerStream& plan);

}  // namespace trainer
