// The dispatcher: what a lane runs next. It has no clock; the runtime drives it with real tasks, the
// simulator with virtual time, the serial interpreter with random choices.
#pragma once

#include <exception>
#include <optional>
#include <vector>

#include "schedule/step_graph.h"

namespace trainer {

// One task in one step (counted from 0 within a dispatcher's life).
struct Instance {
  TaskId task = kNone;
  int step = 0;
  bool operator==(const Instance&) const = default;
};

// Not thread safe; the caller serialises. A lane holds one instance at a time: next() hands it out,
// complete() frees the lane. There is no barrier between steps: instances of the next step are handed out as
// soon as their edges allow.
class Dispatcher {
 public:
  // Runs `steps` steps of the program. `graph` must outlive the dispatcher.
  Dispatcher(const StepGraph& graph, int steps);

  // The instance `lane` may start now, if any. FIFO lanes hand out their program in order; priority lanes the
  // main path in order first, then the ready background task of highest priority, earliest step and program
  // order.
  std::optional<Instance> next(LaneId lane);
  void complete(Instance instance);

  // The task whose completion made `instance` ready; kNone when it was ready from the start.
  TaskId released_by(Instance instance) const;
  // True when `instance` is next on its lane and waits for nothing but `producer` of its own step.
  bool waits_only_for(Instance instance, TaskId producer) const;
  // The task a FIFO lane would run next, ready or not; kNone when its program is done.
  std::optional<Instance> awaited(LaneId lane) const;
  bool busy(LaneId lane) const { return lanes_[static_cast<size_t>(lane)].busy; }
  bool finished() const { return completed_ == total_; }
  // Steps all of whose tasks are complete.
  int steps_completed() const { return base_; }

  // After this, next() rethrows on every lane.
  void poison(std::exception_ptr error) { poison_ = error; }

  // Tasks that are next on their lane and what each still waits for: the text of a deadlock report.
  std::string blocked() const;

 private:
  struct Slot {  // one step in flight
    int step = -1;
    int incomplete = 0;
    std::vector<int> pending;  // edges not yet satisfied, by task
    std::vector<bool> taken, done;
    std::vector<TaskId> released_by;
  };
  struct LaneState {
    bool busy = false;
    int step = 0;  // of the next FIFO instance
    size_t index = 0;
  };

  void admit_steps();
  Slot* slot(int step);
  const Slot* slot(int step) const;
  bool ready(TaskId task, int step) const;
  std::optional<Instance> next_by_priority(LaneId lane);

  const StepGraph& graph_;
  int steps_, window_, admitted_ = 0, base_ = 0;
  int64_t completed_ = 0, total_ = 0;
  std::vector<std::vector<Edge>> consumers_;  // by producer: (consumer, distance)
  std::vector<Slot> slots_;
  std::vector<LaneState> lanes_;
  std::exception_ptr poison_;
};

}  // namespace trainer
