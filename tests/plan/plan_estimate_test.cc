#include "plan/plan_estimate.h"

#include <gtest/gtest.h>

#include "schedule/problems.h"
#include "sim/predict.h"

namespace trainer {
namespace {

PlanModel small_model(bool tied) {
  PlanModel model;
  model.layers = testing::small_problem(8, 1, 1, 1, tied).layers;
  for (LayerCatalogue& layer : model.layers) {
    layer.parameters = 1 << 17;
    layer.tensors = {{0, layer.parameters}};
    const bool block = layer.output_bytes > 0 && layer.gradient_bytes > 0;
    layer.forward_flops = block ? 1e6 : 4e5;
    layer.backward_flops = 2 * layer.forward_flops;
    for (SavedTensor& saved : layer.saved) saved.recompute_flops *= 2e4;
  }
  return model;
}

Platform platform_with(double collective_bytes_per_second) {
  Platform p;
  p.name = "small";
  p.matmul_per_second = {{"bf16", 1e6}};
  p.memory_bytes_per_second = 1e9;
  p.links[static_cast<size_t>(LinkUse::kBoundary)].across_nodes = {0.001, 5e6, ""};
  p.links[static_cast<size_t>(LinkUse::kCollective)].across_nodes = {0.001, collective_bytes_per_second, ""};
  p.collective_algorithm = "ring";
  return p;
}

// Where gathers of weights are what a step takes, their number is what tells plans apart: two of a layer for
// a micro-batch, and a third where the layer is recovered ahead of its backward.
TEST(PlanEstimate, CountsTheGathersOfZero3) {
  PlanRequest request;
  request.memory_budget = int64_t{1} << 40;
  const Platform platform = platform_with(2e4);
  for (const auto& [stages, tied] : {std::pair{2, false}, {4, false}, {2, true}, {4, true}}) {
    const PlanModel model = small_model(tied);
    PlanChoice choice;
    choice.stages = stages;
    choice.replicas = 2;
    choice.zero_stage = 3;
    choice.shard_gradients = true;
    choice.micro_batches = 16;
    choice.passes = {"layer_state_pipeline", "update_prefetch"};
    choice.stage_layers = even_stage_layers(8, stages);
    const auto estimated_and_simulated = [&] {
      const LayerSeconds seconds = layer_seconds(request, model, 1, choice.activation, platform);
      return std::pair{estimate_step(request, model, choice, seconds, platform).step_seconds,
                       predict_step(problem_of(request, model, choice), platform).step.step_seconds};
    };
    choice.activation = ActivationPolicy::kFullSave;
    const auto [kept, kept_simulated] = estimated_and_simulated();
    choice.activation = ActivationPolicy::kCheckpoint;
    choice.recovery_buffers = 2;
    choice.passes.emplace_back("forward_side_recovery");
    const auto [ahead, ahead_simulated] = estimated_and_simulated();
    EXPECT_NEAR(kept / kept_simulated, 1, 0.08) << describe(choice);
    EXPECT_NEAR(ahead / ahead_simulated, 1, 0.08) << describe(choice);
    // The last stage recovers nothing, and with a tied table it is the longest.
    if (!tied) {
      EXPECT_GT(ahead_simulated, 1.1 * kept_simulated);
    }
    EXPECT_NEAR(ahead / kept, ahead_simulated / kept_simulated, 0.03) << describe(choice);
  }
}

}  // namespace
}  // namespace trainer
