#include <algorithm>
#include <map>

#include "schedule/passes.h"

namespace trainer {
namespace {

struct Recovery {
  TaskId recover = kNone, forward = kNone, backward = kNone;
};

// A rank's recoveries in the order of their backwards.
std::map<int, std::vector<Recovery>> find_recoveries(const StepGraphBuilder& builder) {
  std::map<int, std::vector<Recovery>> ranks;
  std::map<std::tuple<int, int, int>, TaskId> forwards, recovers;  // (rank, layer, micro-batch)
  for (TaskId id : builder.sequence()) {
    const Task& task = builder.draft().tasks[static_cast<size_t>(id)];
    const std::tuple key{int{task.at.rank}, int{task.at.layer_begin}, int{task.at.micro_batch}};
    if (task.kind == TaskKind::kForward) forwards[key] = id;
    if (task.kind == TaskKind::kRecover) recovers[key] = id;
    if (task.kind != TaskKind::kBackward) continue;
    if (const auto recover = recovers.find(key); recover != recovers.end())
      ranks[task.at.rank].push_back({recover->second, forwards.at(key), id});
  }
  return ranks;
}

class ForwardSideRecovery : public Pass {
 public:
  void apply(StepGraphBuilder& builder, const Problem& problem) const override {
    std::map<TaskId, size_t> position;
    for (size_t i = 0; i < builder.sequence().size(); ++i) position[builder.sequence()[i]] = i;
    std::vector<std::pair<TaskId, TaskId>> moves;
    for (const auto& [rank, recoveries] : find_recoveries(builder)) {
      // Blocks that are recovered at all, of one micro-batch.
      const auto blocks =
          static_cast<size_t>(std::count_if(recoveries.begin(), recoveries.end(), [&](const Recovery& r) {
            return builder.task(r.recover).at.micro_batch ==
                   builder.task(recoveries.front().recover).at.micro_batch;
          }));
      const size_t buffers =
          problem.recovery_buffers > 0 ? static_cast<size_t>(problem.recovery_buffers) : 2 * blocks;
      for (size_t k = 0; k < recoveries.size(); ++k) {
        // Not before its forward, nor before there is a buffer.
        TaskId behind = recoveries[k].forward;
        if (k >= buffers && position.at(recoveries[k - buffers].backward) > position.at(behind))
          behind = recoveries[k - buffers].backward;
        moves.emplace_back(recoveries[k].recover, behind);
        std::erase_if(builder.task(recoveries[k].recover).uses,
                      [](const Use& use) { return use.role == Role::kInput && use.index == 1; });
      }
    }
    builder.move_behind(moves);
    builder.record_pass("forward_side_recovery");
  }
};

}  // namespace

std::unique_ptr<Pass> make_forward_side_recovery() { return std::make_unique<ForwardSideRecovery>(); }

}  // namespace trainer
