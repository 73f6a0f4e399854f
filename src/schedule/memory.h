// Memory placement: every buffer gets an offset before anything is allocated, and the edges that make any
// legal order respect the reuse of addresses.
#pragma once

#include <array>
#include <compare>
#include <map>

#include "schedule/step_graph.h"

namespace trainer {

// Assigns offsets per (rank, device, space, tier). Persistent buffers, those of several versions
// and those that no task uses keep their place; others share addresses where their lifetimes in the program
// do not meet. For every reuse, the users of the old content come before the first user of the new one:
// within the step, and carried to the next step.
StepGraph place_memory(StepGraph graph);

// One arena of a rank. Buffers that belong to no device lie with device 0.
struct ArenaKey {
  int16_t device = 0;
  Space space = Space::kDevice;
  Tier tier = Tier::kLong;
  auto operator<=>(const ArenaKey&) const = default;
};
ArenaKey arena_of(const Buffer& buffer);
// Bytes of every arena of one rank.
std::map<ArenaKey, int64_t> arena_sizes(const StepGraph& graph, int rank);

// The same by tier, summed over the devices.
using TierBytes = std::array<int64_t, kTierCount>;
TierBytes arena_bytes(const StepGraph& graph, int rank, Space space = Space::kDevice);

// Bytes in use by tier, on all devices together, after each task of the program of one rank: the plan's
// memory over the step.
struct MemoryStep {
  TaskId task = kNone;
  TierBytes in_use{};
};
std::vector<MemoryStep> memory_over_program(const StepGraph& graph, int rank);

// By tier: the buffers of one rank on its devices that are in use when the tier is fullest.
std::array<std::vector<BufferId>, kTierCount> in_use_when_fullest(const StepGraph& graph, int rank);

}  // namespace trainer
