// Between a config and the planner.
#pragma once

#include <memory>

#include "app/config.h"
#include "model/layer.h"
#include "plan/plan_choice.h"

namespace trainer {

// As make_model_config, also of shapes that can be planned for but not trained; their catalogues are those of
// the trainable layers of the same sizes. Loads the tokenizer where the vocabulary's size is left to it.
ModelConfig make_planned_model(const Config& config);

// Of a model_type that is planned for only; `where` heads messages.
ModelConfig planned_model_from_hugging_face(const Json& json, const std::string& where);

// Catalogues of models cut into any number of parts. `kernels`: those whose workspace counts; null: none
// counts.
std::function<PlanModel(int, int64_t)> catalogue_source(const ModelConfig& model, int64_t sequence_length,
                                                        DType dtype,
                                                        std::shared_ptr<const KernelSet> kernels);

// `devices`, `memory_budget` (bytes per rank) are not looked for in the config.
PlanRequest make_plan_request(const Config& config, const ModelConfig& model, int devices,
                              int64_t memory_budget);

// The program that `trainer train` runs with this config on `devices` devices, of all ranks. Throws
// InputError where it cannot be cut so.
Problem planned_problem(Config config, const ModelConfig& model, int devices);

// The plan that a config states, on `devices` devices.
PlanChoice choice_of(const Config& config, const ModelConfig& model, int devices);

// The config with another plan: parallel, schedule, training.micro_batch_size, device.memory_budget.
Config with_plan(Config config, const PlanChoice& choice, int64_t memory_budget);

}  // namespace trainer
