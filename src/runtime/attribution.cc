#include "runtime/attribution.h"

#include <algorithm>

namespace trainer {

WaitAttribution::WaitAttribution(const StepGraph& graph, const Dispatcher& dispatcher, WaitLedger& ledger,
                                 LaneId lane, int64_t first_step, double now)
    : graph_(graph),
      dispatcher_(dispatcher),
      ledger_(ledger),
      lane_(lane),
      first_step_(first_step),
      window_(2 * (graph.max_distance + 2)),  // steps in flight and as many before them
      idle_since_(now),
      runs_(graph.tasks.size() * static_cast<size_t>(window_)) {}

WaitAttribution::Run& WaitAttribution::slot_of(Instance instance) {
  return runs_[static_cast<size_t>(instance.step % window_) * graph_.tasks.size() +
               static_cast<size_t>(instance.task)];
}

WaitAttribution::Run WaitAttribution::run_of(Instance instance) {
  const Run& run = slot_of(instance);
  return run.step == instance.step ? run : Run{};
}

Instance WaitAttribution::producer_of(Instance instance, TaskId producer) {
  Instance latest{producer, instance.step};
  double end = -1;
  for (const Edge& edge : task(instance.task).after) {
    const Instance candidate{producer, instance.step - edge.distance};
    if (edge.producer != producer || candidate.step < 0 || run_of(candidate).time.end <= end) continue;
    latest = candidate;
    end = run_of(candidate).time.end;
  }
  return latest;
}

void WaitAttribution::lane_was_busy(int64_t step, Instance instance, Interval time) {
  if (task(instance.task).lane != lane_)
    return ledger_.waited(step, task(instance.task).kind, time.begin, time.end);
  for (const Background& b : background_) {
    const double begin = std::max(b.time.begin, time.begin), end = std::min(b.time.end, time.end);
    if (begin < end) ledger_.waited(step, b.kind, begin, end);
  }
}

void WaitAttribution::main_path_starts(Instance main, double now) {
  explain(first_step_ + main.step, main, now);
  background_.clear();
}

void WaitAttribution::run_ends(double now) {
  if (last_.task == kNone) return;
  const int64_t step = first_step_ + last_.step;
  if (!is_main_path(task(last_.task).kind)) {
    const double begin = std::max(idle_since_, run_of(last_).time.begin);
    ledger_.waited(step, task(last_.task).kind, begin, std::max(begin, run_of(last_).time.end));
    explain(step, last_, begin);
  }
  ledger_.step_ended(step, now);
}

void WaitAttribution::explain(int64_t step, Instance instance, double until) {
  double from = idle_since_;
  while (until > from) {
    // One that is about to start has not run; the others may be of a step that the dispatcher is done with.
    const Run run = run_of(instance);
    const TaskId producer = run.step == kNone ? dispatcher_.released_by(instance) : run.released_by;
    const Instance before = producer == kNone ? Instance{} : producer_of(instance, producer);
    const double ready = producer == kNone ? from : std::clamp(run_of(before).time.end, from, until);
    if (ready < until) lane_was_busy(step, instance, {ready, until});
    until = ready;
    if (producer == kNone || until <= from) return;
    const Task& p = task(producer);
    if (p.kind == TaskKind::kReceive) {
      const bool forward = graph_.lanes[static_cast<size_t>(p.lane)].kind == LaneKind::kReceiveForward;
      ledger_.waited_for_message(step, forward, p.at.micro_batch, from, until);
      return;
    }
    if (p.kind == TaskKind::kSend)  // its buffer was not free
      ledger_.waited(step, p.kind, std::clamp(run_of(before).time.begin, from, until), until);
    if (is_main_path(p.kind)) return;
    if (p.kind == TaskKind::kNormSync)
      from = ledger_.waited_for_main_paths(first_step_ + before.step, step, from, until);
    const double begin = std::clamp(run_of(before).time.begin, from, until);
    ledger_.waited(step, p.kind, begin, until);
    until = begin;
    instance = before;
  }
}

void WaitAttribution::ran(Instance instance, double begin, double end) {
  slot_of(instance) = {{begin, end}, dispatcher_.released_by(instance), instance.step};
  last_ = instance;
  const Task& t = task(instance.task);
  if (t.kind == TaskKind::kReceive) {
    const bool forward = graph_.lanes[static_cast<size_t>(t.lane)].kind == LaneKind::kReceiveForward;
    ledger_.transferred(first_step_ + instance.step, forward, t.at.micro_batch, begin, end);
  }
  if (t.lane != lane_) return;
  if (is_main_path(t.kind)) {
    idle_since_ = end;
    ledger_.step_ended(first_step_ + instance.step, end);
  } else
    background_.push_back({t.kind, {begin, end}});
}

}  // namespace trainer
