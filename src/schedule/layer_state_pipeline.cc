#include <map>

#include "schedule/passes.h"
#include "schedule/state_tasks.h"

namespace trainer {
namespace {

class LayerStatePipeline : public Pass {
 public:
  void apply(StepGraphBuilder& builder, const Problem&) const override {
    const auto ends = main_path_ends(builder);
    std::map<BufferId, TaskId> last_user;
    std::vector<std::pair<TaskId, TaskId>> moves;
    const auto sequence = builder.sequence();
    for (TaskId id : sequence) {
      Task& task = builder.task(id);
      const TaskId last_backward = ends.at(task.at.rank).last_backward;
      const bool held = is_state_task(task.kind) && std::erase_if(task.after, [&](const Edge& e) {
                                                      return e.producer == last_backward;
                                                    }) > 0;
      // The sum for a tied embedding stays behind those of the rank's own layers: on the last stage it waits
      // for the end of the first stage's backward.
      if (held && task.kind == TaskKind::kGradSync && task.communicator == kDataParallel)
        moves.emplace_back(id, last_user.at(task.uses.front().buffer));
      for (const Use& use : task.uses) last_user[use.buffer] = id;
    }
    builder.move_behind(moves);
    builder.record_pass("layer_state_pipeline");
  }
};

}  // namespace

std::unique_ptr<Pass> make_layer_state_pipeline() { return std::make_unique<LayerStatePipeline>(); }

}  // namespace trainer
