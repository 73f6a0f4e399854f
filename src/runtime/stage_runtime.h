// The stage runtime of one rank: one worker per lane, decisions local, no coordinator.
#pragma once

#include <functional>
#include <set>

#include "runtime/clock.h"
#include "runtime/kernel_binder.h"
#include "runtime/waiting.h"
#include "schedule/timeline.h"

namespace trainer {

struct RuntimeOptions {
  std::set<int64_t> traced_steps;  // absolute, from 1
  WaitLedger* ledger = nullptr;    // may be null
  const Clock* clock = nullptr;
};

// `graph` holds the tasks of one rank (or of several driven by this process) and outlives the runtime. The
// calling thread is the worker of the first compute lane; one thread drives all transfers and collectives, so
// that they progress while the main path computes; every other lane has a thread of its own.
class StageRuntime {
 public:
  StageRuntime(const StepGraph& graph, KernelBinder& binder, RuntimeOptions options);

  // Runs `steps` steps, the first being step `first_step` (absolute, from 1). `on_step(step)` is called on
  // the calling thread, in order, each time all tasks of a step are complete; the next steps may be under way
  // already. Returns at a cut: nothing of these steps is left. Rethrows the first failure of any lane after
  // all lanes have stopped.
  void run(int64_t first_step, int steps, const std::function<void(int64_t)>& on_step);

  Timeline take_timeline();

 private:
  const StepGraph& graph_;
  KernelBinder& binder_;
  RuntimeOptions options_;
  Timeline timeline_;
};

}  // namespace trainer
