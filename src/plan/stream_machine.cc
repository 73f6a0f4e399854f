#include "plan/stream_machine.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace trainer {
namespace {

constexpr int64_t kGradientElement = 4;
// Of one parameter's update, in elements of four bytes: gradient, master and moments read, the latter three
// written.
constexpr double kUpdateElements = 7;

double compute_seconds(const Task& task, const LayerCatalogue& layer, const StreamMachine& machine) {
  switch (task.kind) {
    case TaskKind::kForward:
    case TaskKind::kRecover:
      return layer.forward_flops / machine.flops_per_second;
    case TaskKind::kBackward:
      return layer.backward_flops / machine.flops_per_second;
    default:
      return 0;
  }
}

double lane_rate(LaneKind lane, const StreamMachine& machine) {
  switch (lane) {
    case LaneKind::kHostToDevice:
      return machine.host_to_device;
    case LaneKind::kDeviceToHost:
      return machine.device_to_host;
    case LaneKind::kStorageRead:
      return machine.storage_read;
    case LaneKind::kStorageWrite:
      return machine.storage_write;
    default:
      return 0;
  }
}

}  // namespace

CheckpointProblem checkpoint_problem(const Problem& problem, const StreamMachine& machine,
                                     const BoundaryBudgets& budgets) {
  require(machine.flops_per_second > 0 && machine.host_to_device > 0 && machine.device_to_host > 0,
          "a device without rates");
  const int layers = problem.layer_count() - 2;
  CheckpointProblem p;
  p.device_bytes = budgets.device;
  p.host_bytes = budgets.host;
  const bool storage = machine.storage_read > 0 && machine.storage_write > 0;
  p.storage_bytes = storage ? budgets.storage : 0;
  p.forward_to_host.bytes_per_second = p.backward_to_host.bytes_per_second = machine.device_to_host;
  p.forward_to_device.bytes_per_second = p.backward_to_device.bytes_per_second = machine.host_to_device;
  p.storage_write.bytes_per_second = storage ? machine.storage_write : 1;
  p.storage_read.bytes_per_second = storage ? machine.storage_read : 1;

  const auto add_window = [](TransferWindows& link, double seconds, int64_t mandatory) {
    link.capacity.push_back(std::llround(link.bytes_per_second * seconds));
    link.mandatory.push_back(mandatory);
  };
  p.boundary_bytes.push_back(problem.layers[0].output_bytes);
  for (int w = 0; w <= layers; ++w) {
    const LayerCatalogue& layer = problem.layers[static_cast<size_t>(w) + 1];
    const double forward = layer.forward_flops / machine.flops_per_second;
    const double backward = layer.backward_flops / machine.flops_per_second;
    const bool head = w == layers;
    const int64_t weights = head ? 0 : layer.parameters * problem.element_bytes;
    const int64_t gradient = head ? 0 : layer.parameters * kGradientElement;
    add_window(p.backward_to_host, forward + backward, gradient);
    add_window(p.backward_to_device, forward + backward, weights);
    add_window(p.storage_read, forward + backward, 0);
    if (head) break;
    p.boundary_bytes.push_back(layer.output_bytes);
    p.forward_seconds.push_back(std::max(forward, static_cast<double>(weights) / machine.host_to_device));
    add_window(p.forward_to_host, forward, 0);
    add_window(p.forward_to_device, forward, weights);
    add_window(p.storage_write, forward, 0);
  }
  return p;
}

CostTable stream_costs(const StepGraph& graph, const Problem& problem, const StreamMachine& machine) {
  CostTable costs;
  for (const Task& task : graph.tasks) {
    const LaneKind lane = graph.lanes[static_cast<size_t>(task.lane)].kind;
    double seconds = 0;
    if (task.at.layer_begin >= 0) {
      const LayerCatalogue& layer = problem.layers[static_cast<size_t>(task.at.layer_begin)];
      if (lane == LaneKind::kCompute) seconds = compute_seconds(task, layer, machine);
      if (task.kind == TaskKind::kUpdateShard && machine.host_update > 0)
        seconds = kUpdateElements * 4 * static_cast<double>(layer.parameters) / machine.host_update;
    }
    if (task.bytes > 0) {
      const double rate = lane_rate(lane, machine);
      require(rate > 0, "{} moves bytes on {}, which has no rate", name_of(task.kind), name_of(lane));
      seconds = static_cast<double>(task.bytes) / rate;
    }
    costs.seconds.push_back(seconds);
  }
  return costs;
}

}  // namespace trainer
