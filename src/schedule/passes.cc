#include "schedule/passes.h"

#include "base/error.h"
#include "base/json.h"
#include "schedule/memory.h"
#include "schedule/one_f_one_b.h"

namespace trainer {

std::vector<std::string> pass_names() { return {"step_end_state"}; }

std::unique_ptr<Pass> make_pass(const std::string& name) {
  if (name == "step_end_state") return make_step_end_state();
  const std::string near = nearest_name(name, pass_names());
  input_error("schedule.passes: there is no pass '{}'{}", name,
              near.empty() ? std::string() : fmt::format("; did you mean '{}'?", near));
}

StepGraph build_step_graph(const Problem& problem) {
  StepGraphBuilder builder;
  one_f_one_b(builder, problem);
  make_activation_policy()->apply(builder, problem);
  if (problem.forward_only) return place_memory(builder.build());
  for (const auto& name : problem.passes) make_pass(name)->apply(builder, problem);
  return place_memory(builder.build());
}

}  // namespace trainer
