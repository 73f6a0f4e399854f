// What is kept for the backward pass, and what is recovered.
#pragma once

#include <cstdint>

#include "schedule/problem.h"
#include "schedule/step_graph.h"

namespace trainer {

// Problem::kept of this policy. `last_stage_keeps`: blocks of the last stage, whose backward follows its
// forward at once, keep everything. `memory_budget` (bytes per rank; 0: none) bounds kKeepWhatFits, and lets
// the last stage keep only where that fits. Embedding and head keep everything always.
std::vector<uint64_t> choose_kept(Problem problem, ActivationPolicy policy, bool last_stage_keeps,
                                  int64_t memory_budget);

// Takes what Problem::kept leaves out off each block's Forward, and inserts a Recover before its Backward, as
// a sequence has it: when its gradient is there.
void write_recoveries(StepGraphBuilder& builder, const Problem& problem);

}  // namespace trainer
