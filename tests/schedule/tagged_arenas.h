// Runs a placed program in random legal orders over arenas in which every 64-byte line remembers which
// buffer, of which step, was written there last. A read that finds another writer's line means that a reuse
// edge is missing.
#pragma once

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "schedule/dispatcher.h"
#include "schedule/memory.h"

namespace trainer::testing {

// Calls `start` and `finish` with each instance in a legal order drawn from `seed`.
template <class Start, class Finish>
void run_in_random_order(const StepGraph& graph, int steps, uint64_t seed, Start&& start, Finish&& finish) {
  std::mt19937_64 random(seed);
  Dispatcher dispatcher(graph, steps);
  std::vector<Instance> running;
  std::vector<LaneId> lanes(graph.lanes.size());
  for (size_t i = 0; i < lanes.size(); ++i) lanes[i] = static_cast<LaneId>(i);
  while (!dispatcher.finished()) {
    std::shuffle(lanes.begin(), lanes.end(), random);
    for (LaneId lane : lanes)
      if (random() % 2)
        if (const auto instance = dispatcher.next(lane)) {
          start(*instance);
          running.push_back(*instance);
        }
    std::shuffle(running.begin(), running.end(), random);
    while (!running.empty() && random() % 3) {
      finish(running.back());
      dispatcher.complete(running.back());
      running.pop_back();
    }
  }
}

// Of all ranks of `graph`, their devices and memory spaces. Returns the number of lines found overwritten.
inline int overwritten_lines(const StepGraph& graph, int steps, uint64_t seed) {
  using Tag = std::pair<BufferId, int>;
  std::map<std::pair<int, ArenaKey>, std::vector<Tag>> arenas;
  for (const Buffer& b : graph.buffers)
    if (!arenas.count({b.rank, arena_of(b)}))
      for (const auto& [key, bytes] : arena_sizes(graph, b.rank))
        arenas[{b.rank, key}].assign(static_cast<size_t>((bytes + 63) / 64), Tag{kNone, 0});
  int violations = 0;
  const auto touch = [&](Instance instance, bool at_end) {
    for (const Use& use : graph.tasks[static_cast<size_t>(instance.task)].uses) {
      const Buffer& b = graph.buffers[static_cast<size_t>(use.buffer)];
      std::vector<Tag>& arena = arenas.at({b.rank, arena_of(b)});
      const int version = (instance.step - use.distance + 100 * b.versions) % b.versions;
      const auto begin = static_cast<size_t>((b.offset + version * graph.slot_bytes(b)) / 64);
      auto end = begin + static_cast<size_t>(graph.slot_bytes(b) / 64);
      if (b.persistent) end = std::min(end, begin + 64);  // they share their addresses with none
      const Tag tag{use.buffer, b.persistent ? 0 : instance.step};
      for (size_t line = begin; line < end; ++line) {
        Tag& found = arena[line];
        if (use.access == Access::kWrite && !at_end)
          found = tag;
        else if (found != tag && !(b.persistent && found.first == kNone))
          ++violations;
      }
    }
  };
  // Addresses are written from the moment a task starts. An absorbed task is over when its absorber starts.
  const auto start = [&](Instance i) {
    if (i.absorbed != kNone)
      for (bool at_end : {false, true}) touch({i.absorbed, i.step}, at_end);
    touch(i, false);
  };
  run_in_random_order(graph, steps, seed, start, [&](Instance i) { touch(i, true); });
  return violations;
}

}  // namespace trainer::testing
