// Which plan trains a model fastest within a memory budget: all are sieved by memory and ranked by a closed
// form, the best are simulated.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/memory_model.h"
#include "plan/plan_choice.h"
#include "plan/plan_estimate.h"
#include "sim/platform.h"

namespace trainer {

struct Plan {
  PlanChoice choice;
  StepParts parts;  // simulated
  double bubble_ratio = 0;
  double estimated_seconds = 0;  // by the closed form
  double tokens_per_second = 0;
  StageMemory memory;  // of the stage that needs most
};

enum class RejectionKind : uint8_t {
  kShape,      // the model cannot be cut so
  kBatch,      // the batch cannot
  kMemory,     // some stage needs more than the budget
  kNotFolded,  // replicas share nodes unevenly, so one cannot be simulated for all
  kSlower
};
const char* name_of(RejectionKind kind);

struct Rejection {
  PlanChoice choice;
  RejectionKind kind = RejectionKind::kSlower;
  std::string reason;      // a sentence with its numbers
  std::string part;        // kSlower: of StepParts, what cost it most over the best plan
  int stage = kNone;       // kMemory: the stage
  int64_t bytes = 0;       // kMemory: that it needs, or the least that it would
  double seconds = 0;      // kSlower: of a step
  bool simulated = false;  // kSlower: else by the closed form
};

struct PlanSearch {
  std::vector<Plan> plans;  // the fastest first; empty: nothing fits
  std::vector<Rejection> rejected;
  // Where nothing fits: the plan that misses by least, and what would make one fit.
  std::optional<Rejection> nearest;
  std::string advice;
};

struct PlanEffort {
  int plans = 8;            // to be simulated at most
  int64_t tasks = 150'000;  // of their programs together, as far as more than two plans go
};

// Throws InputError when the platform lacks something that every plan needs.
PlanSearch search_plans(const PlanRequest& request, const Platform& platform, const PlanEffort& effort = {});

// One plan, simulated whether it fits or not. Throws InputError when it cannot be folded.
Plan cost_plan(const PlanRequest& request, const Platform& platform, const PlanChoice& choice);

}  // namespace trainer
