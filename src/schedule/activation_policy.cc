#include <algorithm>

#include "schedule/passes.h"

namespace trainer {
namespace {

class ActivationPolicyPass : public Pass {
 public:
  void apply(StepGraphBuilder& builder, const Problem& problem) const override {
    builder.record_pass(problem.activation == ActivationPolicy::kFullSave ? "full_save" : "checkpoint");
    if (problem.activation == ActivationPolicy::kFullSave) return;
    const auto sequence = builder.sequence();
    for (TaskId id : sequence) {
      const Task& task = builder.task(id);
      const bool block = task.at.layer_begin > 0 && task.at.layer_begin < problem.layer_count() - 1;
      if (!block) continue;
      if (task.kind == TaskKind::kForward)
        std::erase_if(builder.task(id).uses, [](const Use& use) { return use.role == Role::kSaved; });
      if (task.kind == TaskKind::kBackward) recover_before(builder, id);
    }
  }

 private:
  static void recover_before(StepGraphBuilder& builder, TaskId backward) {
    Task recover = builder.task(backward);
    recover.kind = TaskKind::kRecover;
    recover.after.clear();
    std::erase_if(recover.uses, [](const Use& use) {
      return use.role == Role::kGradient || use.role == Role::kOutput ||
             (use.role == Role::kInput && use.index == 1);
    });
    for (Use& use : recover.uses) {
      if (use.role != Role::kSaved) continue;
      use.access = Access::kWrite;
      builder.buffer(use.buffer).tier = Tier::kShort;
    }
    builder.insert_before(backward, std::move(recover));
  }
};

}  // namespace

std::unique_ptr<Pass> make_activation_policy() { return std::make_unique<ActivationPolicyPass>(); }

}  // namespace trainer
