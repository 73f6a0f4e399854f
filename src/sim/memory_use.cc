#include "sim/memory_use.h"

#include <algorithm>
#include <limits>

namespace trainer {
namespace {

struct Life {
  double begin = std::numeric_limits<double>::infinity(), end = 0;
};

struct Change {
  double time;
  int64_t bytes;
  // Space given back at a moment is there for who takes space at the same moment.
  bool operator<(const Change& other) const {
    return time != other.time ? time < other.time : bytes < other.bytes;
  }
};

}  // namespace

std::map<RankArena, MemoryUse> memory_over_time(const StepGraph& graph, const Simulation& simulation) {
  const size_t buffers = graph.buffers.size();
  size_t steps = 0;
  for (const TaskRun& run : simulation.runs)
    steps = std::max(steps, static_cast<size_t>(run.instance.step) + 1);
  std::vector<Life> lives(buffers * steps);
  std::vector<bool> used(buffers);
  for (const TaskRun& run : simulation.runs)
    for (const TaskId task : {run.instance.task, run.instance.absorbed}) {
      if (task == kNone) continue;
      for (const Use& use : graph.tasks[static_cast<size_t>(task)].uses) {
        const auto buffer = static_cast<size_t>(use.buffer);
        Life& life = lives[static_cast<size_t>(run.instance.step) * buffers + buffer];
        life.begin = std::min(life.begin, run.begin);
        life.end = std::max(life.end, run.end);
        used[buffer] = true;
      }
    }

  std::map<RankArena, std::vector<Change>> changes;
  for (size_t b = 0; b < buffers; ++b) {
    const Buffer& buffer = graph.buffers[b];
    auto& list = changes[{buffer.rank, arena_of(buffer)}];
    const int64_t bytes = graph.slot_bytes(buffer);
    if (buffer.persistent || !used[b]) {
      list.push_back({0, bytes * buffer.versions});
      continue;
    }
    for (size_t step = 0; step < steps; ++step) {
      const Life& life = lives[step * buffers + b];
      if (life.end <= life.begin) continue;
      list.push_back({life.begin, bytes});
      list.push_back({life.end, -bytes});
    }
  }

  std::map<RankArena, MemoryUse> result;
  for (auto& [key, list] : changes) {
    std::sort(list.begin(), list.end());
    MemoryUse& use = result[key];
    use.points.push_back({});
    for (const Change& change : list) {
      if (change.time > use.points.back().time) use.points.push_back({change.time, use.points.back().bytes});
      use.points.back().bytes += change.bytes;
    }
    for (const auto& point : use.points) use.peak = std::max(use.peak, point.bytes);
  }
  return result;
}

}  // namespace trainer
