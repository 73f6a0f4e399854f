// The dispatcher: what a lane runs next. It has no clock; the runtime drives it with real tasks, the
// simulator with virtual time, the serial interpreter with random choices.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "schedule/step_graph.h"

namespace trainer {

// One task in one step (counted from 0 within a dispatcher's life), and with it the task it has absorbed:
// that one's work is done first, on the same lane.
struct Instance {
  TaskId task = kNone;
  int step = 0;
  TaskId absorbed = kNone;
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
  // main path in order first, then the ready background task of the earliest step, highest priority and
  // program order: what is left of a step is needed by the forwards of the next, before all of that one's
  // own. A task that waits for nothing but an unstarted one it may absorb is handed out together with it.
  std::optional<Instance> next(LaneId lane);
  void complete(Instance instance);

  // The task whose completion was the last that `instance` waited for; kNone when it waited for none.
  TaskId released_by(Instance instance) const;
  // True when `instance` is next on its lane and waits for nothing but `producer` of its own step.
  bool waits_only_for(Instance instance, TaskId producer) const;
  // What next() will give for the lane of `running`, of its own step, as soon as that one completes, where
  // this is certain: the next in order, and it waits for nothing else.
  std::optional<Instance> follows(Instance running) const;
  // The task a lane would run next in order (of a priority lane: its main path), ready or not; nothing when
  // that program is done.
  std::optional<Instance> awaited(LaneId lane) const;
  bool busy(LaneId lane) const { return lanes_[static_cast<size_t>(lane)].busy; }
  // True when nothing is left for this lane to start.
  bool exhausted(LaneId lane) const { return lanes_[static_cast<size_t>(lane)].untaken == 0; }
  bool finished() const { return completed_ == total_; }
  // Steps all of whose tasks are complete.
  int steps_completed() const { return base_; }

  // Tasks that are next on their lane and what each still waits for: the text of a deadlock report.
  std::string blocked() const;

 private:
  struct TaskState {  // of one step
    int pending = 0;  // edges not yet satisfied
    TaskId released_by = kNone;
    bool taken = false, done = false;
  };
  // What the loops below need of a task, close together.
  struct TaskInfo {
    LaneId lane = kNone;
    TaskId absorbs = kNone;   // the one it may absorb
    int edges_within = 0;     // of its own step
    int position = 0;         // in its lane's program
    bool background = false;  // on a priority lane and not of the main path
  };
  struct Slot {  // one step in flight
    int step = -1;
    int incomplete = 0;
    std::vector<TaskState> tasks;
  };
  struct LaneState {
    bool busy = false;
    int step = 0;  // of the next instance in order
    size_t index = 0;
    std::vector<TaskId> in_order;                 // FIFO: the program; priority: its main path
    std::set<std::tuple<int, int, int>> waiting;  // ready background: (step, -priority, position)
    int64_t untaken = 0;
  };

  void admit_steps();
  Slot& slot(int step) { return slots_[static_cast<size_t>(step % window_)]; }
  const Slot& slot(int step) const { return slots_[static_cast<size_t>(step % window_)]; }
  TaskState& state(int step, TaskId task) { return slot(step).tasks[static_cast<size_t>(task)]; }
  const TaskState& state(int step, TaskId task) const { return slot(step).tasks[static_cast<size_t>(task)]; }
  const TaskInfo& info(TaskId task) const { return info_[static_cast<size_t>(task)]; }
  bool in_flight(int step) const { return step >= base_ && step < admitted_; }
  void take(Slot& slot, TaskId task);
  void became_ready(int step, TaskId task);
  void finish(int step, TaskId task);
  std::tuple<int, int, int> rank_in_waiting(int step, TaskId task) const;

  const StepGraph& graph_;
  int steps_, window_, admitted_ = 0, base_ = 0;
  int64_t completed_ = 0, total_ = 0;
  std::vector<size_t> first_consumer_;  // by producer, into consumers_
  std::vector<Edge> consumers_;         // (consumer, distance)
  std::vector<TaskInfo> info_;          // by task
  std::vector<TaskId> reach_back_;      // tasks with edges into earlier steps
  std::vector<Slot> slots_;
  std::vector<LaneState> lanes_;
};

}  // namespace trainer
