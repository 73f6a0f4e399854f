#include "schedule/passes.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/json.h"
#include "schedule/activation_policy.h"
#include "schedule/memory.h"
#include "schedule/one_f_one_b.h"
#include "schedule/state_tasks.h"

namespace trainer {
namespace {

struct NamedPass {
  const char* name;
  std::unique_ptr<Pass> (*make)();
};
constexpr NamedPass kPasses[] = {{"forward_side_recovery", make_forward_side_recovery},
                                 {"layer_state_pipeline", make_layer_state_pipeline},
                                 {"update_prefetch", make_update_prefetch},
                                 {"transfer_priority", make_transfer_priority}};

// What a priority lane does while its main path waits: first what others wait for, then what the main path
// will need soon, then what it needs in the next step.
int background_priority(TaskKind kind) {
  switch (kind) {
    case TaskKind::kGradFold:
    case TaskKind::kGradNorm:
    case TaskKind::kNormSync:
      return 2;
    case TaskKind::kRecover:
      return 1;
    default:
      return 0;
  }
}

// Compute lanes fill the gaps of the main path with background tasks, and a backward does a recovery itself
// that found none.
void let_compute_adapt(StepGraphBuilder& builder) {
  std::map<std::tuple<int, int, int>, TaskId> recovers;
  for (TaskId id : builder.sequence()) {
    Task& task = builder.task(id);
    if (builder.draft().lanes[static_cast<size_t>(task.lane)].kind != LaneKind::kCompute) continue;
    builder.lane_of(task).order = LaneOrder::kPriority;
    task.priority = background_priority(task.kind);
    const std::tuple key{int{task.at.rank}, int{task.at.layer_begin}, int{task.at.micro_batch}};
    if (task.kind == TaskKind::kRecover) recovers[key] = id;
    if (task.kind == TaskKind::kBackward)
      if (const auto recover = recovers.find(key); recover != recovers.end())
        builder.task(recover->second).absorber = id;
  }
}

}  // namespace

std::vector<std::string> pass_names() {
  std::vector<std::string> names;
  for (const NamedPass& pass : kPasses) names.push_back(pass.name);
  return names;
}

std::unique_ptr<Pass> make_pass(const std::string& name) {
  for (const NamedPass& pass : kPasses)
    if (name == pass.name) return pass.make();
  const std::string near = nearest_name(name, pass_names());
  input_error("schedule.passes: there is no pass '{}'{}", name,
              near.empty() ? std::string() : fmt::format("; did you mean '{}'?", near));
}

StepGraph build_step_graph(const Problem& problem) {
  StepGraphBuilder builder;
  one_f_one_b(builder, problem);
  write_recoveries(builder, problem);
  if (!problem.forward_only) {
    write_state_tasks(builder, problem);
    for (const auto& name : problem.passes) make_pass(name)->apply(builder, problem);
  }
  gather_weights(builder, problem);
  // Ranks that share every layer exchange within its tasks, so all of them must run these in one order.
  const bool adapts = !problem.forward_only && !problem.passes.empty() && problem.tensor_ranks == 1;
  if (adapts) let_compute_adapt(builder);
  return place_memory(builder.build());
}

}  // namespace trainer
