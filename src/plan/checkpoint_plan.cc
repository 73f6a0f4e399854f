#include "plan/checkpoint_plan.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "plan/checkpoint_model.h"

namespace trainer {
namespace {

void require_windows(const TransferWindows& link, size_t windows, const char* name) {
  require(link.capacity.size() == windows && (link.mandatory.empty() || link.mandatory.size() == windows),
          "{}: {} windows, expected {}", name, link.capacity.size(), windows);
  require(link.bytes_per_second > 0, "{}: a rate of {} bytes per second", name, link.bytes_per_second);
}

void require_sizes(const CheckpointProblem& problem) {
  const auto layers = static_cast<size_t>(problem.layers());
  require(layers >= 1 && problem.boundary_bytes.size() == layers + 1, "{} boundaries for {} layers",
          problem.boundary_bytes.size(), layers);
  require(problem.forward_workspace.empty() || problem.forward_workspace.size() == layers,
          "{} forward workspaces for {} layers", problem.forward_workspace.size(), layers);
  require(problem.backward_workspace.empty() || problem.backward_workspace.size() == layers + 1,
          "{} backward workspaces for {} layers", problem.backward_workspace.size(), layers);
  require_windows(problem.forward_to_host, layers, "forward, to the host");
  require_windows(problem.forward_to_device, layers, "forward, to the device");
  require_windows(problem.backward_to_host, layers + 1, "backward, to the host");
  require_windows(problem.backward_to_device, layers + 1, "backward, to the device");
  require_windows(problem.storage_write, layers, "storage, write");
  require_windows(problem.storage_read, layers + 1, "storage, read");
}

CheckpointPlan solve(const CheckpointProblem& problem, const std::vector<BoundaryHome>* homes,
                     bool storage_may_wait, const MilpOptions& options) {
  CheckpointModel model(problem, storage_may_wait);
  CheckpointPlan plan;
  if (homes && !model.fix_homes(*homes)) {
    plan.status = MilpStatus::kInfeasible;
    return plan;
  }
  const MilpSolution solution = solve_milp(model.program(), options);
  plan.status = solution.status;
  if (!solution.has_solution()) return plan;
  plan.schedule = model.schedule(solution.values);
  plan.parts = plan_parts(problem, plan.schedule);
  plan.best_bound = solution.best_bound * model.seconds();
  plan.gap = solution.gap;
  return plan;
}

CheckpointPlan solve(const CheckpointProblem& problem, const std::vector<BoundaryHome>* homes,
                     const MilpOptions& options) {
  require_sizes(problem);
  CheckpointPlan plan = solve(problem, homes, false, options);
  if (plan.status == MilpStatus::kInfeasible && problem.storage_bytes > 0)
    plan = solve(problem, homes, true, options);
  return plan;
}

}  // namespace

CheckpointPlan plan_checkpoints(const CheckpointProblem& problem, const MilpOptions& options) {
  return solve(problem, nullptr, options);
}

CheckpointPlan plan_windows(const CheckpointProblem& problem, const std::vector<BoundaryHome>& homes,
                            const MilpOptions& options) {
  require(homes.size() == problem.boundary_bytes.size(), "{} homes for {} boundaries", homes.size(),
          problem.boundary_bytes.size());
  return solve(problem, &homes, options);
}

int recomputed_layers(const CheckpointSchedule& schedule) {
  return schedule.count(BoundaryHome::kRecomputed);
}

Json to_json(const CheckpointPlan& plan) {
  const CheckpointPlanParts& parts = plan.parts;
  Json json = {{"status", name_of(plan.status)}};
  if (!plan.has_schedule()) return json;
  json["objective_seconds"] = parts.objective();
  json["best_bound_seconds"] = plan.best_bound;
  json["gap"] = plan.gap;
  json["parts_seconds"] = {{"recompute", parts.recompute},
                           {"tie_breaks", parts.tie_breaks},
                           {"exposed_to_host", parts.exposed_to_host},
                           {"exposed_to_device", parts.exposed_to_device},
                           {"exposed_storage_write", parts.exposed_write},
                           {"exposed_storage_read", parts.exposed_read}};
  json["mandatory_exposed_seconds"] = {{"forward", parts.mandatory_forward},
                                       {"backward", parts.mandatory_backward}};
  json["schedule"] = to_json(plan.schedule);
  return json;
}

}  // namespace trainer
