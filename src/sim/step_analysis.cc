#include "sim/step_analysis.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <map>

#include "base/error.h"
#include "sim/memory_use.h"

namespace trainer {
namespace {

const Task& task_of(const StepGraph& graph, const TaskRun& run) {
  return graph.tasks[static_cast<size_t>(run.instance.task)];
}

// The mean of steps `first` to `last`, each from the end of the main path of the step before to that of its
// own.
double step_seconds(const StepGraph& graph, const Simulation& simulation, int steps, int first, int last) {
  std::vector<double> ends(static_cast<size_t>(steps));
  for (const TaskRun& run : simulation.runs)
    if (is_main_path(task_of(graph, run).kind)) {
      double& end = ends[static_cast<size_t>(run.instance.step)];
      end = std::max(end, run.end);
    }
  return (ends[static_cast<size_t>(last)] - ends[static_cast<size_t>(first) - 1]) / (last - first + 1);
}

double tail_seconds(const StepGraph& graph, const Simulation& simulation, int step) {
  std::map<int, double> last_backward, first_forward;  // by rank
  for (const TaskRun& run : simulation.runs) {
    const Task& task = task_of(graph, run);
    if (task.kind == TaskKind::kBackward && run.instance.step == step)
      last_backward[task.at.rank] = std::max(last_backward[task.at.rank], run.end);
    if (task.kind == TaskKind::kForward && run.instance.step == step + 1) {
      const auto [it, fresh] = first_forward.emplace(task.at.rank, run.begin);
      if (!fresh) it->second = std::min(it->second, run.begin);
    }
  }
  double tail = 0;
  for (const auto& [rank, end] : last_backward)
    if (const auto next = first_forward.find(rank); next != first_forward.end())
      tail = std::max(tail, next->second - end);
  return tail;
}

// Makes the tasks of these kinds free. False: they were already.
bool make_free(const StepGraph& graph, CostTable& costs, std::initializer_list<TaskKind> kinds) {
  bool changed = false;
  for (size_t id = 0; id < graph.tasks.size(); ++id) {
    if (std::find(kinds.begin(), kinds.end(), graph.tasks[id].kind) == kinds.end()) continue;
    const auto clear = [&](std::vector<double>& cost) {
      if (cost.empty() || cost[id] == 0) return;
      cost[id] = 0;
      changed = true;
    };
    clear(costs.seconds);
    for (auto& seconds : costs.seconds_in_step) clear(seconds);
    clear(costs.bytes);
  }
  return changed;
}

// Of the mean of steps `first` to `last`; `simulation`: with all costs.
StepParts parts(const StepGraph& graph, const CostTable& costs, int steps, int first, int last,
                const Simulation& simulation) {
  StepParts result;
  result.step_seconds = step_seconds(graph, simulation, steps, first, last);
  CostTable left = costs;
  double before = result.step_seconds;
  const auto part = [&](std::initializer_list<TaskKind> kinds) {
    if (!make_free(graph, left, kinds)) return 0.0;
    const double without = step_seconds(graph, simulate(graph, left, steps), steps, first, last);
    const double exposed = before - without;
    before = without;
    return exposed;
  };
  result.recovery = part({TaskKind::kRecover, TaskKind::kOffload, TaskKind::kReload});
  result.prefetch = part({TaskKind::kPrefetchWeights});
  result.update = part({TaskKind::kUpdateShard, TaskKind::kGradNorm});
  result.communication = part({TaskKind::kGradSync, TaskKind::kNormSync, TaskKind::kGradFold});
  result.main_path = before;
  return result;
}

}  // namespace

StepAnalysis analyse_step(const StepGraph& graph, const CostTable& costs, int steps) {
  require(steps >= 3, "a steady state shows from the third step on, not in {}", steps);
  const Simulation simulation = simulate(graph, costs, steps);
  StepAnalysis result;
  const int step = steps - 2;
  static_cast<StepParts&>(result) = parts(graph, costs, steps, step, step, simulation);
  result.tail = tail_seconds(graph, simulation, step);
  result.busy_seconds.assign(graph.lanes.size(), 0);
  for (const TaskRun& run : simulation.runs)
    if (run.instance.step == step)
      result.busy_seconds[static_cast<size_t>(task_of(graph, run).lane)] += run.end - run.begin;
  double busy = 0;
  int compute_lanes = 0;
  for (size_t lane = 0; lane < graph.lanes.size(); ++lane)
    if (graph.lanes[lane].kind == LaneKind::kCompute) {
      busy += result.busy_seconds[lane];
      ++compute_lanes;
    }
  if (result.step_seconds > 0 && compute_lanes > 0)
    result.bubble_ratio = std::max(0.0, 1 - busy / (compute_lanes * result.step_seconds));

  return result;
}

StepParts mean_step_parts(const StepGraph& graph, const CostTable& costs, int steps) {
  require(steps >= 2, "of {} steps none is left without the first", steps);
  return parts(graph, costs, steps, 1, steps - 1, simulate(graph, costs, steps));
}

double steady_step_seconds(const StepGraph& graph, const CostTable& costs, int steps) {
  require(steps >= 3, "a steady state shows from the third step on, not in {}", steps);
  return step_seconds(graph, simulate(graph, costs, steps), steps, steps - 2, steps - 2);
}

Timeline to_timeline(const StepGraph& graph, const Simulation& simulation, int first_step) {
  Timeline timeline;
  for (const TaskRun& run : simulation.runs) {
    const Task& task = task_of(graph, run);
    timeline.events.push_back({graph.describe(run.instance.task), name_of(task.kind),
                               track_of(graph.lanes[static_cast<size_t>(task.lane)]), task.at.rank,
                               run.instance.step + first_step, task.at.layer_begin, task.at.micro_batch,
                               run.begin, run.end});
  }
  std::map<int, std::map<double, TierBytes>> changes;  // by rank and time
  for (const auto& [key, use] : memory_over_time(graph, simulation)) {
    if (key.arena.space != Space::kDevice) continue;
    int64_t before = 0;
    for (const auto& point : use.points) {
      changes[key.rank][point.time][static_cast<size_t>(key.arena.tier)] += point.bytes - before;
      before = point.bytes;
    }
  }
  for (const auto& [rank, by_time] : changes) {
    TierBytes bytes{};
    for (const auto& [time, change] : by_time) {
      for (size_t tier = 0; tier < kTierCount; ++tier) bytes[tier] += change[tier];
      timeline.memory.push_back({time, rank, bytes[0], bytes[1], bytes[2]});
    }
  }
  return timeline;
}

}  // namespace trainer
