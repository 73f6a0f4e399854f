#include "plan/timed_pipeline.h"

#include <algorithm>
#include <limits>
#include <map>

#include "base/error.h"
#include "schedule/one_f_one_b.h"
#include "schedule/pipelines.h"

namespace trainer {
namespace {

constexpr int64_t kBoundaryBytes = 64;  // sizes play no part, but copies have one

Problem plain_problem(int layers, int micro_batches) {
  Problem p;
  p.micro_batches = micro_batches;
  for (int l = 0; l < layers; ++l) {
    LayerCatalogue c;
    c.name = l == 0 ? "embedding" : l + 1 == layers ? "head" : fmt::format("block {}", l);
    c.parameters = 1;
    c.output_bytes = l + 1 == layers ? 0 : kBoundaryBytes;
    c.gradient_bytes = l == 0 ? 0 : kBoundaryBytes;
    p.layers.push_back(std::move(c));
  }
  p.first_layer = {0, layers};
  return p;
}

bool is_compute(const Task& task) {
  return task.kind == TaskKind::kForward || task.kind == TaskKind::kBackward ||
         task.kind == TaskKind::kRecover;
}

// Of the tasks of phase 0. `floating`: says of a compute task that it may run long before what it is for.
template <class Floating>
ScheduleTimes measure(const StepGraph& graph, const CostTable& costs, int devices, const Floating& floating) {
  struct Device {
    double first = std::numeric_limits<double>::infinity(), last = 0;
  };
  std::map<LaneId, Device> seen;
  ScheduleTimes times;
  times.devices = devices;
  for (const TaskRun& run : simulate(graph, costs).runs) {
    const Task& task = graph.tasks[static_cast<size_t>(run.instance.task)];
    const double seconds = costs.seconds[static_cast<size_t>(run.instance.task)];
    if (!is_compute(task) || task.at.phase != 0 || seconds == 0) continue;
    times.busy += seconds;
    times.makespan = std::max(times.makespan, run.end);
    Device& device = seen[task.lane];
    if (!floating(task)) device.first = std::min(device.first, run.begin);
    device.last = std::max(device.last, run.end);
  }
  for (auto& [lane, device] : seen) {
    double ahead = 0;
    for (TaskId id : graph.lanes[static_cast<size_t>(lane)].program) {
      if (!floating(graph.tasks[static_cast<size_t>(id)])) break;
      ahead += costs.seconds[static_cast<size_t>(id)];
    }
    times.fill += device.first - ahead;
    times.drain += times.makespan - device.last;
  }
  require(static_cast<int>(seen.size()) == devices, "{} of {} devices work", seen.size(), devices);
  return times;
}

// The copy of an activation to the host for recomputation alone is no hop between devices.
bool leaves_stage(const StepGraph& graph, const RoundRobin& plan, const Task& task) {
  const Use* input = graph.find(task, Role::kInput, 1);
  if (input) return true;  // a gradient
  for (const IndexRange& range : plan.stages.forward)
    if (task.at.layer_begin == range.end - 1) return true;
  return false;
}

struct TimedGraph {
  StepGraph graph;
  CostTable costs;
};

TimedGraph round_robin_graph(const TimedModel& model, const RoundRobin& plan, int micro_batches) {
  const Problem problem = plain_problem(model.layers + 2, micro_batches);
  StepGraphBuilder builder;
  round_robin_dispatch(builder, problem, plan);
  TimedGraph timed{builder.build(), {}};
  for (const Task& task : timed.graph.tasks) {
    const bool head = task.at.layer_begin == model.layers + 1, block = task.at.layer_begin > 0 && !head;
    double seconds = 0;
    if (task.kind == TaskKind::kForward || task.kind == TaskKind::kRecover)
      seconds = head ? model.head_forward : block ? model.forward : 0;
    if (task.kind == TaskKind::kBackward) seconds = head ? model.head_backward : block ? model.backward : 0;
    if (task.kind == TaskKind::kOffload && task.at.micro_batch >= 0 && plan.devices > 1 &&
        leaves_stage(timed.graph, plan, task))
      seconds = model.hop;
    timed.costs.seconds.push_back(seconds);
  }
  return timed;
}

// Moves the fused stage's wait for its input from its forwards to its backwards.
void release_fused_forwards(StepGraph& graph, int fused_stage) {
  std::map<std::pair<int, int>, std::vector<Edge>> waits;  // (phase, micro-batch)
  const auto brings_input = [&](const Edge& edge) {
    return graph.tasks[static_cast<size_t>(edge.producer)].kind == TaskKind::kReload &&
           graph.tasks[static_cast<size_t>(edge.producer)].at.micro_batch >= 0;
  };
  for (TaskId id : graph.sequence) {
    Task& task = graph.tasks[static_cast<size_t>(id)];
    if (!is_compute(task) || task.at.stage != fused_stage) continue;
    auto& held = waits[{task.at.phase, task.at.micro_batch}];
    if (task.kind == TaskKind::kForward) {
      std::copy_if(task.after.begin(), task.after.end(), std::back_inserter(held), brings_input);
      std::erase_if(task.after, brings_input);
    } else {
      task.after.insert(task.after.end(), held.begin(), held.end());
      held.clear();
    }
  }
}

}  // namespace

ScheduleTimes time_pipeline(const TimedModel& model, PipelineSchedule schedule,
                            const std::vector<int>& stage_layers, int devices, int micro_batches) {
  // A stage's blocks count as one layer.
  const int stages = static_cast<int>(stage_layers.size());
  Problem problem = plain_problem(stages + 2, micro_batches);
  problem.stages = devices;
  problem.first_layer = {0};
  for (int s = 1; s < stages; ++s) problem.first_layer.push_back(s + 1);
  problem.first_layer.push_back(stages + 2);
  StepGraphBuilder builder;
  switch (schedule) {
    case PipelineSchedule::kOneFOneB:
      one_f_one_b(builder, problem);
      break;
    case PipelineSchedule::kGpipe:
      gpipe(builder, problem);
      break;
    case PipelineSchedule::kInterleaved1F1B:
      interleaved_1f1b(builder, problem);
      break;
    case PipelineSchedule::kLoopedBfs:
      looped_bfs(builder, problem);
      break;
  }
  const StepGraph graph = builder.build();
  CostTable costs;
  for (const Task& task : graph.tasks) {
    const int layer = task.at.layer_begin;
    const bool head = layer == stages + 1;
    const double blocks = layer > 0 && !head ? stage_layers[static_cast<size_t>(layer) - 1] : 0;
    double seconds = 0;
    if (task.kind == TaskKind::kForward) seconds = head ? model.head_forward : blocks * model.forward;
    if (task.kind == TaskKind::kBackward)
      seconds = head ? model.head_backward : blocks * (model.forward + model.backward);
    if (task.kind == TaskKind::kSend) seconds = model.hop;
    costs.seconds.push_back(seconds);
  }
  return measure(graph, costs, devices, [](const Task& task) { return task.kind == TaskKind::kRecover; });
}

ScheduleTimes time_round_robin(const TimedModel& model, const std::vector<int>& forward,
                               const std::vector<int>& backward, int devices, int micro_batches,
                               const RoundRobinTiming& timing) {
  RoundRobin plan;
  plan.stages = dispatch_stages(forward, backward);
  plan.devices = devices;
  plan.delayed = timing.delayed;
  TimedGraph timed = round_robin_graph(model, plan, micro_batches);
  const int fused = static_cast<int>(forward.size());
  if (!timing.fused_forward_waits) release_fused_forwards(timed.graph, fused);
  return measure(timed.graph, timed.costs, devices, [&](const Task& task) {
    const bool released = !timing.fused_forward_waits && task.at.stage == fused;
    return task.kind == TaskKind::kRecover || (released && task.kind == TaskKind::kForward);
  });
}

double steady_step_seconds(const TimedModel& model, const std::vector<int>& forward,
                           const std::vector<int>& backward, int devices, int micro_batches, bool delayed) {
  RoundRobin plan;
  plan.stages = dispatch_stages(forward, backward);
  plan.devices = devices;
  plan.delayed = delayed;
  const TimedGraph timed = round_robin_graph(model, plan, micro_batches);
  constexpr int kPeriods = 3;
  const Simulation simulation = simulate(timed.graph, timed.costs, kPeriods);
  double ends[2] = {};  // of the first period and of the last one
  for (const TaskRun& run : simulation.runs)
    for (int i : {0, 1})
      if (run.instance.step == i * (kPeriods - 1)) ends[i] = std::max(ends[i], run.end);
  return (ends[1] - ends[0]) / ((kPeriods - 1) * timed.graph.period);
}

PartitionProblem partition_problem(const TimedModel& model, int devices, int micro_batches) {
  PartitionProblem problem;
  problem.layers.assign(static_cast<size_t>(model.layers), {model.forward, model.backward});
  problem.layers.push_back({model.head_forward, model.head_backward});
  problem.devices = devices;
  problem.micro_batches = micro_batches;
  return problem;
}

}  // namespace trainer
