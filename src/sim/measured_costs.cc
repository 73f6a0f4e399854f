#include "sim/measured_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
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
    const std::string track = track_of(graph.lanes[static_cast<size_t>(task.lane)]);
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

namespace {

struct Interval {
  double begin = -INFINITY, end = -INFINITY;  // not finite: is not in the timeline
};

// When each task of the graph ran, [step from `first`][task].
std::vector<std::vector<Interval>> intervals(const StepGraph& graph, const Timeline& timeline, int first,
                                             int count) {
  using Name = std::tuple<int, std::string, std::string>;  // rank, lane, task
  // Several tasks of a lane may have one name, as the sums of a layer over different ranks: they run in
  // order.
  std::map<Name, std::vector<TaskId>> tasks;
  for (const Lane& lane : graph.lanes)
    for (TaskId id : lane.program) tasks[{lane.rank, track_of(lane), graph.describe(id)}].push_back(id);
  std::vector<std::map<Name, std::vector<Interval>>> runs(static_cast<size_t>(count));
  for (const TimelineEvent& e : timeline.events)
    if (e.step >= first && e.step < first + count)
      runs[static_cast<size_t>(e.step - first)][{e.rank, e.lane, e.name}].push_back({e.begin, e.end});
  std::vector<std::vector<Interval>> ran(static_cast<size_t>(count),
                                         std::vector<Interval>(graph.tasks.size()));
  for (size_t step = 0; step < runs.size(); ++step)
    for (auto& [name, of_name] : runs[step]) {
      const auto found = tasks.find(name);
      if (found == tasks.end() || found->second.size() != of_name.size()) continue;
      std::sort(of_name.begin(), of_name.end(),
                [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
      for (size_t i = 0; i < of_name.size(); ++i)
        ran[step][static_cast<size_t>(found->second[i])] = of_name[i];
    }
  return ran;
}

}  // namespace

CostTable replayed_costs(const StepGraph& graph, CostTable costs, const Timeline& timeline, int first,
                         int count) {
  costs.seconds_in_step.assign(static_cast<size_t>(count), costs.seconds);
  std::vector<TaskId> before(graph.tasks.size(), kNone);  // on the lane
  for (const Lane& lane : graph.lanes)
    for (size_t i = 1; i < lane.program.size(); ++i)
      before[static_cast<size_t>(lane.program[i])] = lane.program[i - 1];
  const auto ran = intervals(graph, timeline, first, count);
  for (size_t step = 0; step < ran.size(); ++step) {
    const auto& in_step = ran[step];
    auto& seconds = costs.seconds_in_step[step];
    // When a Send could have begun, had it been looked at at once: its message's way is from then on.
    const auto sendable = [&](size_t send) {
      double time = before[send] == kNone ? -INFINITY : in_step[static_cast<size_t>(before[send])].end;
      for (const Edge& e : graph.tasks[send].after)
        if (e.distance == 0 &&
            graph.tasks[static_cast<size_t>(e.producer)].at.rank == graph.tasks[send].at.rank)
          time = std::max(time, in_step[static_cast<size_t>(e.producer)].end);
      return std::isfinite(time) ? std::min(time, in_step[send].begin) : in_step[send].begin;
    };
    std::map<int, double> last_came;  // by collective
    for (size_t id = 0; id < graph.tasks.size(); ++id)
      if (costs.meeting[id] != kNone) {
        const auto [came, fresh] = last_came.emplace(costs.meeting[id], in_step[id].begin);
        came->second = std::max(came->second, in_step[id].begin);
      }
    for (size_t id = 0; id < graph.tasks.size(); ++id) {
      const Task& task = graph.tasks[id];
      const Interval& own = in_step[id];
      if (!std::isfinite(own.end) || task.kind == TaskKind::kSend) continue;
      if (task.kind != TaskKind::kReceive) {
        seconds[id] = own.end - (costs.meeting[id] == kNone ? own.begin : last_came.at(costs.meeting[id]));
        seconds[id] = std::max(0.0, seconds[id]);
        continue;
      }
      for (const Edge& edge : task.after) {
        const auto sender = static_cast<size_t>(edge.producer);
        if (graph.tasks[sender].kind == TaskKind::kSend && graph.tasks[sender].at.rank != task.at.rank &&
            edge.distance == 0 && std::isfinite(in_step[sender].end))
          seconds[sender] = std::max(0.0, own.end - std::max(own.begin, sendable(sender)));
      }
    }
  }
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
