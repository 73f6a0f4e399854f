#include "schedule/passes.h"
#include "schedule/state_tasks.h"

namespace trainer {
namespace {

// State tasks stand in the order of the layers' next use already: earliest deadline first is their program
// order, which priority lanes keep among tasks of one priority.
class UpdatePrefetch : public Pass {
 public:
  void apply(StepGraphBuilder& builder, const Problem&) const override {
    for (const auto& [rank, ends] : main_path_ends(builder))
      std::erase_if(builder.task(ends.first_forward).after, [](const Edge& e) { return e.distance > 0; });
    builder.record_pass("update_prefetch");
  }
};

}  // namespace

std::unique_ptr<Pass> make_update_prefetch() { return std::make_unique<UpdatePrefetch>(); }

}  // namespace trainer
