#include "sim/measured_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>

#include "schedule/passes.h"
#include "sim/cost_model.h"

namespace trainer {
namespace {

// The kind, and the lane where a kind runs on several.
using Key = std::tuple<std::string, std::string, int, int>;  // kind, lane, rank (-1: any), layer

bool mostly_waits(const std::string& kind, const std::string& lane) {
  return kind == name_of(TaskKind::kSend) || lane == name_of(LaneKind::kCollective);
}

}  // namespace

CostTable measured_costs(const StepGraph& graph, const Problem& problem, const Timeline& timeline) {
  std::map<Key, std::vector<double>> lengths;
  for (const TimelineEvent& e : timeline.events)
    for (int rank : {int{e.rank}, -1}) lengths[{e.kind, e.lane, rank, e.layer}].push_back(e.end - e.begin);
  for (auto& [key, values] : lengths) std::sort(values.begin(), values.end());

  CostTable costs;
  for (const Task& task : graph.tasks) {
    const std::string kind = name_of(task.kind);
    const Lane& lane = graph.lanes[static_cast<size_t>(task.lane)];
    std::string track = name_of(lane.kind);
    if (lane.device > 0) track += fmt::format(" {}", lane.device);
    double seconds = 0;
    for (int rank : {int{task.at.rank}, -1}) {
      const auto found = lengths.find({kind, track, rank, task.at.layer_begin});
      if (task.kind == TaskKind::kReceive || found == lengths.end()) continue;
      const auto& values = found->second;
      seconds = mostly_waits(kind, track) ? values.front() : values[values.size() / 2];
      break;
    }
    costs.seconds.push_back(seconds);
  }
  costs.meeting = collective_meetings(graph, problem);
  return costs;
}

MeasuredProgram measured_program(Problem problem, const Timeline& timeline) {
  problem.ranks.clear();
  MeasuredProgram program;
  program.graph = build_step_graph(problem);
  program.costs = measured_costs(program.graph, problem, timeline);
  return program;
}

}  // namespace trainer
