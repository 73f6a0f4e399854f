#include "schedule/pipelines.h"

#include <algorithm>

#include "base/error.h"

namespace trainer {
namespace {

// A rank's slots by local stage, counted off in rounds: stage 0's first micro-batches, then stage 1's, ...
class Rounds {
 public:
  Rounds(bool forward, int pipeline_ranks, int rank, int stages, int round)
      : forward_(forward),
        pipeline_ranks_(pipeline_ranks),
        rank_(rank),
        stages_(stages),
        round_(round),
        micro_batches_(static_cast<size_t>(stages)) {}

  Slot next() {
    const int turn = count_++ / round_ % stages_;
    const int local = forward_ ? turn : stages_ - 1 - turn;
    return {forward_, micro_batches_[static_cast<size_t>(local)]++, local * pipeline_ranks_ + rank_};
  }

 private:
  bool forward_;
  int pipeline_ranks_, rank_, stages_, round_, count_ = 0;
  std::vector<int> micro_batches_;
};

}  // namespace

std::vector<Slot> gpipe_slots(int stage, int micro_batches) {
  std::vector<Slot> slots;
  for (bool forward : {true, false})
    for (int m = 0; m < micro_batches; ++m) slots.push_back({forward, m, stage});
  return slots;
}

void gpipe(StepGraphBuilder& builder, const Problem& problem) {
  write_pipeline(builder, problem, [&](int stage) { return gpipe_slots(stage, problem.micro_batches); });
  builder.record_pass("gpipe");
}

std::vector<Slot> interleaved_1f1b_slots(int pipeline_ranks, int rank, int stages_per_rank,
                                         int micro_batches) {
  const int rounds = std::max(1, micro_batches / pipeline_ranks);
  if (micro_batches % rounds != 0)
    input_error(
        "interleaved_1f1b: {} micro-batches do not divide into {} rounds of equal size; use a multiple of "
        "the {} pipeline ranks",
        micro_batches, rounds, pipeline_ranks);
  const int round = micro_batches / rounds, count = stages_per_rank * micro_batches;
  const int warm_up = std::min((stages_per_rank - 1) * round + 2 * (pipeline_ranks - 1 - rank), count);
  Rounds forwards(true, pipeline_ranks, rank, stages_per_rank, round);
  Rounds backwards(false, pipeline_ranks, rank, stages_per_rank, round);
  std::vector<Slot> slots;
  for (int i = 0; i < warm_up; ++i) slots.push_back(forwards.next());
  for (int i = warm_up; i < count; ++i) {
    slots.push_back(forwards.next());
    slots.push_back(backwards.next());
  }
  for (int i = 0; i < warm_up; ++i) slots.push_back(backwards.next());
  return slots;
}

void interleaved_1f1b(StepGraphBuilder& builder, const Problem& problem) {
  write_pipeline(builder, problem, [&](int rank) {
    return interleaved_1f1b_slots(problem.stages, rank, stages_per_rank(problem), problem.micro_batches);
  });
  builder.record_pass("interleaved_1f1b");
}

std::vector<Slot> looped_bfs_slots(int pipeline_ranks, int rank, int stages_per_rank, int micro_batches) {
  std::vector<Slot> slots;
  for (int c = 0; c < stages_per_rank; ++c)
    for (int m = 0; m < micro_batches; ++m) slots.push_back({true, m, c * pipeline_ranks + rank});
  const std::vector<Slot> forwards = slots;
  for (auto slot = forwards.rbegin(); slot != forwards.rend(); ++slot)
    slots.push_back({false, slot->micro_batch, slot->stage});
  return slots;
}

void looped_bfs(StepGraphBuilder& builder, const Problem& problem) {
  if (problem.virtual_ranks > 1)
    input_error(
        "looped_bfs: backwards run from the last micro-batch down, so gradients of virtual ranks cannot be "
        "folded in their order; use one virtual rank");
  write_pipeline(builder, problem, [&](int rank) {
    return looped_bfs_slots(problem.stages, rank, stages_per_rank(problem), problem.micro_batches);
  });
  builder.record_pass("looped_bfs");
}

}  // namespace trainer
