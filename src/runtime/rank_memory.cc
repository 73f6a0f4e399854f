#include "runtime/rank_memory.h"

#include <algorithm>
#include <map>

#include "base/error.h"

namespace trainer {
namespace {

using ArenaSizes = std::map<ArenaKey, int64_t>;

// End of what keeps its place between steps.
ArenaSizes persistent_end(const StepGraph& graph, int rank) {
  ArenaSizes end;
  for (const Buffer& b : graph.buffers) {
    if (b.rank != rank || !b.persistent) continue;
    int64_t& e = end[arena_of(b)];
    e = std::max(e, b.offset + graph.slot_bytes(b) * b.versions);
  }
  return end;
}

ArenaSizes plan_arenas(const StepGraph& training, const std::vector<const StepGraph*>& between, int rank) {
  ArenaSizes sizes = arena_sizes(training, rank), base = persistent_end(training, rank);
  for (const StepGraph* graph : between) {
    ArenaSizes kept = persistent_end(*graph, rank);
    for (const auto& [key, all] : arena_sizes(*graph, rank))
      sizes[key] = std::max(sizes[key], base[key] + all - kept[key]);
  }
  return sizes;
}

}  // namespace

TierBytes RankMemory::plan(const StepGraph& training, const std::vector<const StepGraph*>& between,
                           int rank) {
  TierBytes bytes{};
  for (const auto& [key, size] : plan_arenas(training, between, rank))
    bytes[static_cast<size_t>(key.tier)] += size;
  return bytes;
}

RankMemory::RankMemory(const StepGraph& training, const std::vector<const StepGraph*>& between, int rank,
                       Device& device) {
  for (const auto& [key, size] : plan_arenas(training, between, rank))
    arenas_[key] = (key.space == Space::kDevice ? device : host_device()).allocate(static_cast<size_t>(size));
  std::map<std::string, const Buffer*> persistent;
  Layout first{&training, {}};
  for (const Buffer& b : training.buffers) {
    first.offsets.push_back(b.rank == rank ? b.offset : kNone);
    if (b.rank == rank && b.persistent) persistent[b.name] = &b;
  }
  ArenaSizes base = persistent_end(training, rank);
  layouts_.push_back(std::move(first));
  for (const StepGraph* graph : between) {
    ArenaSizes kept = persistent_end(*graph, rank);
    Layout layout{graph, {}};
    for (const Buffer& b : graph->buffers) {
      if (b.rank != rank) {
        layout.offsets.push_back(kNone);
      } else if (b.persistent) {
        const auto shared = persistent.find(b.name);
        require(shared != persistent.end() && arena_of(*shared->second) == arena_of(b) &&
                    shared->second->bytes >= b.bytes && shared->second->versions == b.versions,
                "'{}' is not a buffer of the training step", b.name);
        layout.offsets.push_back(shared->second->offset);
      } else {
        layout.offsets.push_back(b.offset - kept[arena_of(b)] + base[arena_of(b)]);
      }
    }
    layouts_.push_back(std::move(layout));
  }
}

std::byte* RankMemory::address(const StepGraph& graph, BufferId id, int64_t step, int distance) const {
  const Buffer& b = graph.buffers[static_cast<size_t>(id)];
  for (const Layout& layout : layouts_) {
    if (layout.graph != &graph) continue;
    const int64_t offset = layout.offsets[static_cast<size_t>(id)];
    require(offset != kNone, "buffer '{}' is not of this rank", b.name);
    const int64_t slot = b.versions == 1 ? 0 : ((step - distance) % b.versions + b.versions) % b.versions;
    return arenas_.at(arena_of(b))->bytes().data() + offset + slot * graph.slot_bytes(b);
  }
  require(false, "a step graph that this memory was not laid out for");
  return nullptr;
}

}  // namespace trainer
