// What ran when. Returned by executors, read by the trace, the report and waiting-time attribution.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trainer {

struct TimelineEvent {
  std::string name;  // "Forward layer 3 micro-batch 1"
  std::string kind;  // task kind: "Forward", "Backward", "Send", ...
  std::string lane;  // "compute", "receive_forward", ...; "compute 1": of the rank's device 1
  int32_t rank = 0;
  int32_t step = 0;                      // absolute training step, from 1
  int32_t layer = -1, micro_batch = -1;  // -1: not applicable
  double begin = 0, end = 0;             // seconds since the start of the run, one clock for all ranks
};

// Seconds of one step in which the main path waited, by cause.
struct ExposedTime {
  double bubble = 0;     // pipeline bubble
  double boundary = 0;   // stage-boundary communication
  double grad_sync = 0;  // E_comm
  double update = 0;     // E_upd
  double prefetch = 0;   // E_pref
  double recovery = 0;   // E_rec
};

// Bytes in use of each lifetime tier at a moment of a step.
struct MemorySample {
  double time = 0;  // seconds since the start of the run
  int32_t rank = 0;
  int64_t long_tier = 0, medium_tier = 0, short_tier = 0;
};

struct Timeline {
  std::vector<TimelineEvent> events;
  std::vector<MemorySample> memory;
};

}  // namespace trainer
