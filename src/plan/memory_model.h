// Memory of a rank by tier and by what it holds, before anything is allocated.
#pragma once

#include <array>
#include <cstdint>
#include <numeric>

#include "schedule/memory.h"
#include "schedule/problem.h"

namespace trainer {

enum class MemoryClass : uint8_t {
  kWeights,    // as layers read them, gathered copies included
  kGradients,  // of weights, and shards of them
  kMaster,     // fp32 copies that the optimizer updates, where weights are not fp32 themselves
  kMoments,
  kActivations,  // kept for backward: layers' inputs and saved tensors
  kRecovery,     // saved tensors that are recovered
  kStaging,      // on their way: gradients of activations, received inputs, scratch of exchanges
  kWorkspace     // kernels' and layers' scratch, losses, norms
};
inline constexpr size_t kMemoryClassCount = 8;
const char* name_of(MemoryClass memory_class);

struct StageMemory {
  int stage = 0;
  TierBytes tiers{};  // arenas: what a rank of this stage allocates
  // In use when its tier is fullest; together at most the arenas, which have gaps.
  std::array<int64_t, kMemoryClassCount> classes{};

  int64_t total() const { return tiers[0] + tiers[1] + tiers[2]; }
  int64_t in_use() const { return std::accumulate(classes.begin(), classes.end(), int64_t{0}); }
};

// Of a placed graph that holds `rank`.
StageMemory memory_of(const StepGraph& graph, int rank, int stage);

// The same for the first rank of a stage, from the program of fewer micro-batches: once a stage has as many
// in flight as it ever has, more of them change nothing.
StageMemory stage_memory(const Problem& problem, int stage);

// Of the stage that needs most.
StageMemory fullest_stage(const Problem& problem);

// The problem with as many micro-batches as memory depends on.
Problem shortened(Problem problem);

// At most stage_memory(problem, stage).total(), from the catalogues alone: what must be there at one moment
// at least. For sieving many plans.
int64_t least_stage_memory(const Problem& problem, int stage);

}  // namespace trainer
