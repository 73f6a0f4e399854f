#include "runtime/rank_memory.h"

#include <algorithm>
#include <map>

#include "base/error.h"

namespace trainer {
namespace {

// End of what keeps its place between steps, by tier.
TierBytes persistent_end(const StepGraph& graph, int rank) {
  TierBytes end{};
  for (const Buffer& b : graph.buffers) {
    if (b.rank != rank || !b.persistent) continue;
    int64_t& e = end[static_cast<size_t>(b.tier)];
    e = std::max(e, b.offset + graph.slot_bytes(b) * b.versions);
  }
  return end;
}

}  // namespace

TierBytes RankMemory::plan(const StepGraph& training, const std::vector<const StepGraph*>& between,
                           int rank) {
  TierBytes sizes = arena_bytes(training, rank);
  const TierBytes base = persistent_end(training, rank);
  for (const StepGraph* graph : between) {
    const TierBytes all = arena_bytes(*graph, rank), kept = persistent_end(*graph, rank);
    for (size_t t = 0; t < kTierCount; ++t) sizes[t] = std::max(sizes[t], base[t] + all[t] - kept[t]);
  }
  return sizes;
}

RankMemory::RankMemory(const StepGraph& training, const std::vector<const StepGraph*>& between, int rank)
    : sizes_(plan(training, between, rank)) {
  for (size_t t = 0; t < kTierCount; ++t) arenas_[t] = Arena(static_cast<size_t>(sizes_[t]));
  std::map<std::string, int64_t> persistent;
  Layout first{&training, {}};
  for (const Buffer& b : training.buffers) {
    first.offsets.push_back(b.rank == rank ? b.offset : kNone);
    if (b.rank == rank && b.persistent) persistent[b.name] = b.offset;
  }
  const TierBytes base = persistent_end(training, rank);
  layouts_.push_back(std::move(first));
  for (const StepGraph* graph : between) {
    const TierBytes kept = persistent_end(*graph, rank);
    Layout layout{graph, {}};
    for (const Buffer& b : graph->buffers) {
      const auto tier = static_cast<size_t>(b.tier);
      if (b.rank != rank) {
        layout.offsets.push_back(kNone);
      } else if (b.persistent) {
        const auto shared = persistent.find(b.name);
        require(shared != persistent.end(), "'{}' is not a buffer of the training step", b.name);
        layout.offsets.push_back(shared->second);
      } else {
        layout.offsets.push_back(b.offset - kept[tier] + base[tier]);
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
    return arenas_[static_cast<size_t>(b.tier)].bytes().data() + offset + slot * graph.slot_bytes(b);
  }
  require(false, "a step graph that this memory was not laid out for");
  return nullptr;
}

}  // namespace trainer
