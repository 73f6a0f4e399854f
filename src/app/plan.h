// `trainer plan`: how to train a model on a platform, and why not otherwise.
#pragma once

#include <span>
#include <string>

#include "base/json.h"
#include "plan/planner.h"

namespace trainer {

// {platform, devices, memory_budget_bytes, plans: [{rank, plan, memory_bytes: {long, medium, short, total},
// step_seconds, parts, ...}], rejected: [{plan, kind, reason, ...}], advice}.
Json plan_json(const PlanSearch& search, const PlanRequest& request, const Platform& platform);
// By tier, and "total".
Json memory_json(const StageMemory& memory);
Json parts_json(const StepParts& parts);
// Tables of the plans and of why the others lost, grouped.
std::string plan_text(const PlanSearch& search, const PlanRequest& request);

// Returns the exit code.
int plan_command(std::span<const std::string> arguments);

}  // namespace trainer
