// Memory placement: every buffer gets an offset before anything is allocated, and the edges that make any
// legal order respect the reuse of addresses.
#pragma once

#include <array>
#include <map>

#include "schedule/step_graph.h"

namespace trainer {

// Assigns offsets per (rank, space, tier). Persistent buffers (and those no task uses) keep their place;
// others share addresses where their lifetimes in the program do not meet. For every reuse, the users of the
// old content come before the first user of the new one: within the step, and carried to the next step.
StepGraph place_memory(StepGraph graph);

// Arena sizes in bytes of one rank, by tier.
using TierBytes = std::array<int64_t, kTierCount>;
TierBytes arena_bytes(const StepGraph& graph, int rank, Space space = Space::kDevice);

// Bytes in use by tier after each task of the program of one rank: the plan's memory over the step.
struct MemoryStep {
  TaskId task = kNone;
  TierBytes in_use{};
};
std::vector<MemoryStep> memory_over_program(const StepGraph& graph, int rank);

}  // namespace trainer
