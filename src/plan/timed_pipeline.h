// Schedules compared on models that are known by their times only: the step graphs of the front ends,
// simulated.
#pragma once

#include <vector>

#include "plan/stage_partition.h"
#include "sim/simulator.h"

namespace trainer {

// Seconds of one micro-batch.
struct TimedModel {
  int layers = 1;                              // transformer blocks
  double forward = 0, backward = 0;            // of a block; recomputation, which costs `forward`, excluded
  double head_forward = 0, head_backward = 0;  // the head is never recomputed
  double hop = 0;                              // an activation or gradient from one device to another
};

enum class PipelineSchedule { kOneFOneB, kGpipe, kInterleaved1F1B, kLoopedBfs };

struct ScheduleTimes {
  int devices = 1;
  double makespan = 0;  // seconds of one step
  double busy = 0;      // of all devices, as are the next two
  double fill = 0;  // before each one's first task; a recomputation that waits counts as run right before its
                    // backward
  double drain = 0;  // after each one's last task

  // Shares of devices x makespan.
  double bubble() const { return 1 - busy / (devices * makespan); }
  // Without what overlaps with the steps before and after when nothing waits for the end of a step.
  double inner_bubble() const { return bubble() - (fill + drain) / (devices * makespan); }
};

// `stage_layers`: blocks of each stage, a multiple of `devices` of them; the head comes with the last. A
// block's recomputation begins when its gradient has come.
ScheduleTimes time_pipeline(const TimedModel& model, PipelineSchedule schedule,
                            const std::vector<int>& stage_layers, int devices, int micro_batches);

struct RoundRobinTiming {
  bool delayed = false;  // RoundRobin::delayed
  // The forward of the fused stage does not wait for its input. No program could run so; RoundPipe's
  // published figures are made so.
  bool fused_forward_waits = true;
};

// Rounds of `devices` micro-batches; of the first of the period's steps. Recomputation may begin before the
// gradient has come.
ScheduleTimes time_round_robin(const TimedModel& model, const std::vector<int>& forward,
                               const std::vector<int>& backward, int devices, int micro_batches,
                               const RoundRobinTiming& timing = {});

// Mean seconds of a step over many that follow each other, updates taking no time: what the pipeline does
// between filling once and draining once.
double steady_step_seconds(const TimedModel& model, const std::vector<int>& forward,
                           const std::vector<int>& backward, int devices, int micro_batches, bool delayed);

PartitionProblem partition_problem(const TimedModel& model, int devices, int micro_batches);

}  // namespace trainer
