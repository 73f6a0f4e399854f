// Small graphs for tests of the simulator.
#pragma once

#include "schedule/step_graph.h"

namespace trainer::testing {

inline Task bare_task(TaskKind kind, LaneId lane, std::vector<Use> uses = {}) {
  Task t;
  t.kind = kind;
  t.lane = lane;
  t.at.rank = 0;
  t.uses = std::move(uses);
  return t;
}

// One task on each of `lanes` lanes, independent of each other; task i is on lane i.
inline StepGraph independent_tasks(int lanes) {
  StepGraphBuilder builder;
  for (int i = 0; i < lanes; ++i)
    builder.append(bare_task(TaskKind::kOffload, builder.lane(i, LaneKind::kDeviceToHost)));
  return builder.build();
}

}  // namespace trainer::testing
