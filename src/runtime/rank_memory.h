// The memory of one rank: one arena per device, memory space and lifetime tier, laid out by the step graphs
// that run in it.
#pragma once

#include <map>
#include <vector>

#include "device/device.h"
#include "schedule/memory.h"
#include "schedule/step_graph.h"

namespace trainer {

// Where each buffer of a graph lies. A second graph (evaluation) shares the first one's persistent buffers,
// by name, and lays its own over the part that holds nothing between two steps.
class RankMemory {
 public:
  // Bytes by tier, in all spaces together, for `training` and the graphs that run between its steps.
  static TierBytes plan(const StepGraph& training, const std::vector<const StepGraph*>& between, int rank);

  // `device` owns the memory of the space kDevice and outlives this.
  RankMemory(const StepGraph& training, const std::vector<const StepGraph*>& between, int rank,
             Device& device = host_device());

  // First byte of the buffer's slot for `step` (absolute; `distance` steps back). `graph` is one of those
  // given.
  std::byte* address(const StepGraph& graph, BufferId buffer, int64_t step = 0, int distance = 0) const;

 private:
  struct Layout {
    const StepGraph* graph;
    std::vector<int64_t> offsets;  // by buffer; kNone: of another rank
  };
  std::map<ArenaKey, DeviceMemoryPtr> arenas_;
  std::vector<Layout> layouts_;
};

}  // namespace trainer
