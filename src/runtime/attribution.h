// Why the main path of a rank waited: walks back from the task it waited for to what that one had waited for.
#pragma once

#include <deque>
#include <vector>

#include "runtime/waiting.h"
#include "schedule/dispatcher.h"

namespace trainer {

// For the first compute lane of a graph. Not thread safe. Times are those of the rank's clock.
class WaitAttribution {
 public:
  // `graph`, `dispatcher` and `ledger` must outlive it. `now`: from here on the lane could work.
  WaitAttribution(const StepGraph& graph, const Dispatcher& dispatcher, WaitLedger& ledger, LaneId lane,
                  int64_t first_step, double now);

  // Before a task of the main path starts: books the time since the one before it ended.
  void main_path_starts(Instance instance, double now);
  // When nothing is left to run: books the time since the last task of the main path ended.
  void run_ends(double now);
  // After any task has run, on any lane; before the dispatcher is told, which forgets what released it when
  // its step is done.
  void ran(Instance instance, double begin, double end);

 private:
  struct Interval {
    double begin = 0, end = 0;
  };
  struct Run {
    Interval time;
    TaskId released_by = kNone;
    int step = kNone;
  };
  struct Background {
    TaskKind kind;
    Interval time;
  };

  Run& slot_of(Instance instance);
  // How an instance ran; a Run of no length when that is no longer known.
  Run run_of(Instance instance);
  // The instance of `producer` that `instance` waited for.
  Instance producer_of(Instance instance, TaskId producer);
  // Books the time from idle_since_ until `until`, when `instance` started.
  void explain(int64_t step, Instance instance, double until);
  // The lane was busy, or had not got to it, although `instance` could have started: a wait in `step`.
  void lane_was_busy(int64_t step, Instance instance, Interval time);
  const Task& task(TaskId id) const { return graph_.tasks[static_cast<size_t>(id)]; }

  const StepGraph& graph_;
  const Dispatcher& dispatcher_;
  WaitLedger& ledger_;
  const LaneId lane_;
  const int64_t first_step_;
  const int window_;
  double idle_since_;
  Instance last_;                      // to end
  std::vector<Run> runs_;              // [step modulo window, task]
  std::deque<Background> background_;  // of the lane, since idle_since_
};

}  // namespace trainer
