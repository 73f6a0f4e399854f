// What executors ask to do the work of a task.
#pragma once

#include "comm/communicator.h"
#include "schedule/dispatcher.h"

namespace trainer {

class KernelBinder {
 public:
  virtual ~KernelBinder() = default;
  // Does the instance's work. Returns null when it is done; a transfer or collective may return the request
  // still under way, which the caller polls. Called from one thread per lane.
  virtual RequestPtr start(const StepGraph& graph, Instance instance) = 0;
  // After the request of an instance completed, before its consumers may start.
  virtual void finish(const StepGraph& graph, Instance instance) = 0;
  // Between start() and finish() of an instance of the compute lane: starts `next`, which follows on that
  // lane and waits for nothing else, behind it. Then finish() does not wait for `next`, and start() is not
  // called for it. False, and nothing done, where `next` cannot be put into a queue without waiting.
  virtual bool start_behind(const StepGraph& graph, Instance next) {
    static_cast<void>(graph), static_cast<void>(next);
    return false;
  }
};

}  // namespace trainer
