#include "plan/plan_choice.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "plan/memory_model.h"
#include "schedule/activation_policy.h"

namespace trainer {

bool PlanChoice::has(const std::string& pass) const {
  return std::find(passes.begin(), passes.end(), pass) != passes.end();
}

bool is_chosen_among(const std::string& pass) {
  return pass == "forward_side_recovery" || pass == "layer_state_pipeline" || pass == "update_prefetch";
}

const char* name_of(ActivationPolicy policy) {
  switch (policy) {
    case ActivationPolicy::kFullSave:
      return "full_save";
    case ActivationPolicy::kCheckpoint:
      return "checkpoint";
    case ActivationPolicy::kSelective:
      return "selective";
    case ActivationPolicy::kKeepWhatFits:
      return "keep_what_fits";
  }
  return "";
}

std::string describe_stages(const std::vector<int64_t>& stage_layers) {
  std::string text;
  for (size_t i = 0; i < stage_layers.size();) {
    size_t end = i;
    while (end < stage_layers.size() && stage_layers[end] == stage_layers[i]) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", stage_layers[i]);
    if (end - i > 1) text += fmt::format(" x {}", end - i);
    i = end;
  }
  return text;
}

std::string describe(const PlanChoice& c) {
  std::string text =
      fmt::format("P{} D{} T{} Z{}{} b{} A{} {}, layers {}", c.stages, c.replicas, c.tensor_ranks,
                  c.zero_stage, c.shard_gradients ? "s" : "", c.micro_batch_size, c.micro_batches,
                  name_of(c.activation), describe_stages(c.stage_layers));
  if (c.passes.empty()) text += ", no passes";
  for (const std::string& pass : c.passes) text += ", " + pass;
  return text;
}

Problem problem_of(const PlanRequest& request, const PlanModel& model, const PlanChoice& choice,
                   bool decide_kept) {
  Problem p;
  p.stages = choice.stages;
  p.replicas = choice.replicas;
  p.tensor_ranks = choice.tensor_ranks;
  p.micro_batches = choice.micro_batches;
  p.layers = model.layers;
  p.first_layer = first_layers(choice.stage_layers);
  p.element_bytes = request.element_bytes;
  p.workspace_bytes = model.workspace_bytes;
  p.tensor_staging_bytes = model.tensor_staging_bytes;
  p.zero_stage = choice.zero_stage;
  p.shard_gradients = choice.shard_gradients;
  p.recovery_buffers = choice.recovery_buffers;
  p.updates_wait_for_norm = request.updates_wait_for_norm;
  p.passes = choice.passes;
  if (decide_kept)
    p.kept = choose_kept(shortened(p), choice.activation, true, request.memory_budget);
  else if (choice.activation != ActivationPolicy::kKeepWhatFits)
    p.kept = choose_kept(p, choice.activation, false, 0);
  else
    p.kept = choose_kept(p, ActivationPolicy::kCheckpoint, false, 0);
  return p;
}

std::vector<int64_t> balanced_stage_layers(int64_t blocks, std::vector<double> base,
                                           const std::vector<double>& each) {
  const auto stages = static_cast<int64_t>(base.size());
  require(blocks >= stages && each.size() == base.size(), "{} blocks over {} stages", blocks, stages);
  std::vector<int64_t> layers(base.size(), 1);
  for (size_t s = 0; s < base.size(); ++s) base[s] += each[s];
  for (int64_t left = blocks - stages; left > 0; --left) {
    size_t least = 0;
    for (size_t s = 1; s < base.size(); ++s)
      if (base[s] + each[s] <= base[least] + each[least]) least = s;
    base[least] += each[least];
    ++layers[least];
  }
  return layers;
}

}  // namespace trainer
