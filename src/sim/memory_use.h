// Memory over virtual time, from when tasks really ran.
#pragma once

#include <compare>
#include <map>
#include <vector>

#include "schedule/memory.h"
#include "sim/simulator.h"

namespace trainer {

// One arena of one rank.
struct RankArena {
  int16_t rank = -1;
  ArenaKey arena;
  auto operator<=>(const RankArena&) const = default;
};

struct MemoryUse {
  struct Point {
    double time = 0;  // from here to the next point
    int64_t bytes = 0;
  };
  std::vector<Point> points;  // by ascending time, the first at 0
  int64_t peak = 0;
};

// Bytes in use. A buffer is in use from the begin of the first task of a step that uses it to the end of the
// last; persistent buffers and those that no task uses, always, with all versions. Lifetimes of no length are
// left out. Never more than the placed arena.
std::map<RankArena, MemoryUse> memory_over_time(const StepGraph& graph, const Simulation& simulation);

}  // namespace trainer
