#include "sim/recovery_lane.h"

#include <algorithm>
#include <map>

#include "schedule/memory.h"

namespace trainer {
namespace {

bool overlap(const StepGraph& graph, const Buffer& a, const Buffer& b) {
  return a.rank == b.rank && arena_of(a) == arena_of(b) &&
         a.offset < b.offset + graph.slot_bytes(b) * b.versions &&
         b.offset < a.offset + graph.slot_bytes(a) * a.versions;
}

// True when nothing but temporary memory makes one of them wait for the other: no other content, and no
// other addresses.
bool share_only_temporaries(const StepGraph& graph, const Task& a, const Task& b) {
  bool temporary = false;
  for (const Use& one : a.uses)
    for (const Use& other : b.uses) {
      if (one.buffer == other.buffer && one.access == Access::kRead && other.access == Access::kRead)
        continue;
      if (one.role == Role::kTemporary && one.buffer == other.buffer)
        temporary = true;
      else if (overlap(graph, graph.buffers[static_cast<size_t>(one.buffer)],
                       graph.buffers[static_cast<size_t>(other.buffer)]))
        return false;
    }
  return temporary;
}

}  // namespace

StepGraph with_recovery_lane(StepGraph graph) {
  std::vector<bool> moved(graph.tasks.size());
  std::map<int, LaneId> lanes;  // by rank
  for (TaskId id : graph.sequence) {
    Task& task = graph.tasks[static_cast<size_t>(id)];
    if (task.kind != TaskKind::kRecover || task.absorber == kNone) continue;
    const auto [it, fresh] = lanes.try_emplace(task.at.rank, static_cast<LaneId>(graph.lanes.size()));
    if (fresh) {
      Lane lane;
      lane.kind = LaneKind::kHostCompute;
      lane.rank = task.at.rank;
      lane.device = task.at.device;
      graph.lanes.push_back(std::move(lane));
    }
    moved[static_cast<size_t>(id)] = true;
    task.absorber = kNone;
    task.lane = it->second;
    graph.lanes[static_cast<size_t>(it->second)].program.push_back(id);
  }
  for (Lane& lane : graph.lanes)
    if (lane.kind == LaneKind::kCompute)
      std::erase_if(lane.program, [&](TaskId id) { return moved[static_cast<size_t>(id)]; });
  for (size_t id = 0; id < graph.tasks.size(); ++id) {
    Task& task = graph.tasks[id];
    std::erase_if(task.after, [&](const Edge& edge) {
      const auto producer = static_cast<size_t>(edge.producer);
      return moved[id] != moved[producer] && share_only_temporaries(graph, task, graph.tasks[producer]);
    });
  }
  graph.provenance += " + recovery_lane";
  return graph;
}

}  // namespace trainer
