// What front ends and passes need to write one rank's part of a program.
#pragma once

#include <string>
#include <utility>

#include "schedule/step_graph.h"

namespace trainer {

// A buffer on a device of a rank.
inline Buffer rank_buffer(int rank, std::string name, int64_t bytes, Tier tier, bool persistent = false,
                          int device = 0) {
  Buffer b;
  b.name = std::move(name);
  b.bytes = bytes;
  b.tier = tier;
  b.rank = static_cast<int16_t>(rank);
  b.device = static_cast<int16_t>(device);
  b.persistent = persistent;
  return b;
}

// A task on a lane of a rank's device. `micro_batch`, `layer`: -1 where not applicable.
inline Task rank_task(StepGraphBuilder& builder, TaskKind kind, LaneKind lane, int rank, int stage,
                      int micro_batch, int layer, int device = 0) {
  Task t;
  t.kind = kind;
  t.lane = builder.lane(rank, lane, device);
  t.at.rank = static_cast<int16_t>(rank);
  t.at.device = static_cast<int16_t>(device);
  t.at.phase = 0;
  t.at.stage = static_cast<int16_t>(stage);
  t.at.micro_batch = static_cast<int16_t>(micro_batch);
  t.at.layer_begin = static_cast<int16_t>(layer);
  t.at.layer_end = static_cast<int16_t>(layer < 0 ? -1 : layer + 1);
  return t;
}

// For writers of one rank's part.
class RankWriter {
 public:
  RankWriter(StepGraphBuilder& builder, int rank, int stage)
      : builder_(builder), rank_(rank), stage_(stage) {}

 protected:
  BufferId make(const std::string& name, int64_t bytes, Tier tier, bool persistent = false) const {
    return builder_.add_buffer(rank_buffer(rank_, name, bytes, tier, persistent));
  }
  Task task(TaskKind kind, LaneKind lane, int micro_batch, int layer) const {
    return rank_task(builder_, kind, lane, rank_, stage_, micro_batch, layer);
  }

  StepGraphBuilder& builder_;
  const int rank_, stage_;
};

}  // namespace trainer
