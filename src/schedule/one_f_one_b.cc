#include "schedule/one_f_one_b.h"

namespace trainer {

std::vector<Slot> one_f_one_b_slots(int stages, int stage, int micro_batches, bool forward_only) {
  const int warm_up = forward_only ? micro_batches : warm_up_micro_batches(stages, stage, micro_batches);
  std::vector<Slot> slots;
  for (int m = 0; m < warm_up; ++m) slots.push_back({true, m, stage});
  for (int i = 0; i < micro_batches - warm_up; ++i) {
    slots.push_back({true, warm_up + i, stage});
    slots.push_back({false, i, stage});
  }
  if (forward_only) return slots;
  for (int m = micro_batches - warm_up; m < micro_batches; ++m) slots.push_back({false, m, stage});
  return slots;
}

void one_f_one_b(StepGraphBuilder& builder, const Problem& problem) {
  write_pipeline(builder, problem, [&](int stage) {
    return one_f_one_b_slots(problem.stages, stage, problem.micro_batches, problem.forward_only);
  });
  builder.record_pass("one_f_one_b");
}

}  // namespace trainer
