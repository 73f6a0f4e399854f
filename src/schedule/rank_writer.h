// What front ends and passes need to write one rank's part of a program.
#pragma once

#include "schedule/step_graph.h"

namespace trainer {

class RankWriter {
 public:
  RankWriter(StepGraphBuilder& builder, int rank, int stage)
      : builder_(builder), rank_(rank), stage_(stage) {}

 protected:
  BufferId make(const std::string& name, int64_t bytes, Tier tier, bool persistent = false) const {
    Buffer b;
    b.name = name;
    b.bytes = bytes;
    b.tier = tier;
    b.rank = static_cast<int16_t>(rank_);
    b.device = 0;
    b.persistent = persistent;
    return builder_.add_buffer(std::move(b));
  }

  // `micro_batch`, `layer`: -1 where not applicable.
  Task task(TaskKind kind, LaneKind lane, int micro_batch, int layer) const {
    Task t;
    t.kind = kind;
    t.lane = builder_.lane(rank_, lane);
    t.at.rank = static_cast<int16_t>(rank_);
    t.at.device = 0;
    t.at.phase = 0;
    t.at.stage = static_cast<int16_t>(stage_);
    t.at.micro_batch = static_cast<int16_t>(micro_batch);
    t.at.layer_begin = static_cast<int16_t>(layer);
    t.at.layer_end = static_cast<int16_t>(layer < 0 ? -1 : layer + 1);
    return t;
  }

  StepGraphBuilder& builder_;
  const int rank_, stage_;
};

}  // namespace trainer
