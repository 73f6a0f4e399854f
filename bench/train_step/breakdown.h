// Where the time of a step goes.
#pragma once

#include <vector>

#include "runtime/stage_runtime.h"
#include "support/kernel_meter.h"
#include "support/program.h"
#include "train_step/grid.h"

namespace trainer {

// Seconds of one step and rank by kind of task and part of the model, the longest first.
Json task_breakdown(const RankEvents& ranks, int layers, int steps);

// What a pipeline of these ranks could reach of the rate of an even one without a bubble: the slowest
// computes its micro-batches one after the other, and the others fill and drain.
double ideal_pipeline(const RankEvents& ranks, double micro_batches);

// What the program around the tasks takes: time in which the compute lane runs none, though one rank never
// waits, and processor time of the program's other lanes, whose threads live for a step. Medians over the
// timed steps, as shares of them.
Json program_overhead(const std::vector<TimelineEvent>& events, const std::vector<double>& other_seconds,
                      int timed);

// FLOPs and bytes a second that the machine reaches at best.
struct MachineRates {
  double products = 0, memory = 0;

  double seconds(const KernelWork& work) const { return work.flops / products + work.bytes / memory; }
};

// Of a step, the longest first: calls, FLOPs and bytes of all ranks together, seconds of one rank on average,
// and which part of them the kernel would need at its ceiling. `record` is of `steps`.
Json kernel_breakdown(const KernelRecord& record, const MachineRates& rates, int steps, int ranks);

}  // namespace trainer
