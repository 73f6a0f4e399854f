#include "schedule/passes.h"

namespace trainer {
namespace {

class TransferPriority : public Pass {
 public:
  void apply(StepGraphBuilder& builder, const Problem&) const override {
    for (TaskId id : builder.sequence()) {
      Lane& lane = builder.lane_of(builder.task(id));
      if (lane.kind == LaneKind::kCollective) lane.yields = true;
    }
    builder.record_pass("transfer_priority");
  }
};

}  // namespace

std::unique_ptr<Pass> make_transfer_priority() { return std::make_unique<TransferPriority>(); }

}  // namespace trainer
