// The state tasks of a step: what happens to gradients, optimizer state and weights.
#pragma once

#include <map>

#include "schedule/problem.h"
#include "schedule/step_graph.h"

namespace trainer {

// Appends GradSync, GradNorm, NormSync, UpdateShard and PrefetchW of each layer in one batch after the last
// backward of the step, with a barrier before the next step: the baseline that the passes take apart. Under
// Problem::shard_gradients, gradients are summed after each micro-batch, under the backward passes, in any
// case.
void write_state_tasks(StepGraphBuilder& builder, const Problem& problem);

// The ends of each rank's main path, by rank: what the baseline's batch and barrier hang on.
struct MainPathEnds {
  TaskId first_forward = kNone, last_forward = kNone, last_backward = kNone;
};
std::map<int, MainPathEnds> main_path_ends(const StepGraphBuilder& builder);
bool is_state_task(TaskKind kind);

// Under ZeRO stage 3: each use of a layer's weights reads a copy gathered from the replicas' shards just
// before, one use ahead. Runs last, when every Recover has its place.
void gather_weights(StepGraphBuilder& builder, const Problem& problem);

}  // namespace trainer
