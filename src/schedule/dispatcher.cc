#include "schedule/dispatcher.h"

#include <algorithm>

#include "base/error.h"

namespace trainer {

Dispatcher::Dispatcher(const StepGraph& graph, int steps)
    : graph_(graph),
      steps_(steps),
      window_(graph.max_distance + 2),
      consumers_(graph.tasks.size()),
      slots_(static_cast<size_t>(window_)),
      lanes_(graph.lanes.size()) {
  for (size_t id = 0; id < graph.tasks.size(); ++id)
    for (const Edge& edge : graph.tasks[id].after)
      consumers_[static_cast<size_t>(edge.producer)].push_back({static_cast<TaskId>(id), edge.distance});
  total_ = static_cast<int64_t>(graph.tasks.size()) * steps;
  admit_steps();
}

Dispatcher::Slot* Dispatcher::slot(int step) {
  Slot& s = slots_[static_cast<size_t>(step % window_)];
  return s.step == step ? &s : nullptr;
}
const Dispatcher::Slot* Dispatcher::slot(int step) const {
  const Slot& s = slots_[static_cast<size_t>(step % window_)];
  return s.step == step ? &s : nullptr;
}

void Dispatcher::admit_steps() {
  while (admitted_ < steps_ && admitted_ < base_ + window_ && !(graph_.tasks.empty())) {
    const int step = admitted_++;
    Slot& s = slots_[static_cast<size_t>(step % window_)];
    s.step = step;
    s.incomplete = static_cast<int>(graph_.tasks.size());
    s.pending.assign(graph_.tasks.size(), 0);
    s.taken.assign(graph_.tasks.size(), false);
    s.done.assign(graph_.tasks.size(), false);
    s.released_by.assign(graph_.tasks.size(), kNone);
    for (size_t id = 0; id < graph_.tasks.size(); ++id)
      for (const Edge& edge : graph_.tasks[id].after) {
        const int from = step - edge.distance;
        if (from < base_) continue;  // complete, or before the first step
        const Slot* producer = slot(from);
        if (!producer->done[static_cast<size_t>(edge.producer)]) ++s.pending[id];
      }
  }
}

bool Dispatcher::ready(TaskId task, int step) const {
  const Slot* s = slot(step);
  return s && s->pending[static_cast<size_t>(task)] == 0;
}

std::optional<Instance> Dispatcher::next(LaneId id) {
  if (poison_) std::rethrow_exception(poison_);
  LaneState& state = lanes_[static_cast<size_t>(id)];
  const Lane& lane = graph_.lanes[static_cast<size_t>(id)];
  if (state.busy || lane.program.empty()) return std::nullopt;
  if (lane.order == LaneOrder::kPriority) return next_by_priority(id);
  if (state.step >= steps_) return std::nullopt;
  const TaskId task = lane.program[state.index];
  if (!ready(task, state.step)) return std::nullopt;
  const Instance instance{task, state.step};
  slot(state.step)->taken[static_cast<size_t>(task)] = true;
  state.busy = true;
  if (++state.index == lane.program.size()) {
    state.index = 0;
    ++state.step;
  }
  return instance;
}

std::optional<Instance> Dispatcher::next_by_priority(LaneId id) {
  const Lane& lane = graph_.lanes[static_cast<size_t>(id)];
  std::optional<Instance> best;
  int best_priority = 0;
  bool main_path_open = true;  // an earlier main-path task not yet taken bars the later ones
  for (int step = base_; step < admitted_; ++step) {
    Slot* s = slot(step);
    for (TaskId task : lane.program) {
      if (s->taken[static_cast<size_t>(task)]) continue;
      const Task& t = graph_.tasks[static_cast<size_t>(task)];
      if (is_main_path(t.kind)) {
        if (main_path_open && s->pending[static_cast<size_t>(task)] == 0) {
          s->taken[static_cast<size_t>(task)] = true;
          lanes_[static_cast<size_t>(id)].busy = true;
          return Instance{task, step};
        }
        main_path_open = false;
      } else if (s->pending[static_cast<size_t>(task)] == 0 && (!best || t.priority > best_priority)) {
        best = Instance{task, step};
        best_priority = t.priority;
      }
    }
  }
  if (best) {
    slot(best->step)->taken[static_cast<size_t>(best->task)] = true;
    lanes_[static_cast<size_t>(id)].busy = true;
  }
  return best;
}

void Dispatcher::complete(Instance instance) {
  Slot* s = slot(instance.step);
  require(s && s->taken[static_cast<size_t>(instance.task)] && !s->done[static_cast<size_t>(instance.task)],
          "{} of step {} completed without running", graph_.describe(instance.task), instance.step);
  s->done[static_cast<size_t>(instance.task)] = true;
  lanes_[static_cast<size_t>(graph_.tasks[static_cast<size_t>(instance.task)].lane)].busy = false;
  for (const Edge& consumer : consumers_[static_cast<size_t>(instance.task)]) {
    Slot* target = slot(instance.step + consumer.distance);
    if (!target) continue;  // not admitted yet: counted when it is
    const auto index = static_cast<size_t>(consumer.producer);
    if (--target->pending[index] == 0) target->released_by[index] = instance.task;
  }
  --s->incomplete;
  ++completed_;
  while (base_ < admitted_ && slot(base_)->incomplete == 0) ++base_;
  admit_steps();
}

TaskId Dispatcher::released_by(Instance instance) const {
  const Slot* s = slot(instance.step);
  return s ? s->released_by[static_cast<size_t>(instance.task)] : kNone;
}

bool Dispatcher::waits_only_for(Instance instance, TaskId producer) const {
  const Task& task = graph_.tasks[static_cast<size_t>(instance.task)];
  const Slot* s = slot(instance.step);
  return s && s->pending[static_cast<size_t>(instance.task)] == 1 &&
         !s->done[static_cast<size_t>(producer)] && !busy(task.lane) && awaited(task.lane) == instance;
}

std::optional<Instance> Dispatcher::awaited(LaneId id) const {
  const LaneState& state = lanes_[static_cast<size_t>(id)];
  const Lane& lane = graph_.lanes[static_cast<size_t>(id)];
  if (lane.program.empty() || state.step >= steps_) return std::nullopt;
  return Instance{lane.program[state.index], state.step};
}

std::string Dispatcher::blocked() const {
  std::string text;
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    const auto waiting = awaited(static_cast<LaneId>(lane));
    if (!waiting || lanes_[lane].busy || ready(waiting->task, waiting->step)) continue;
    text += fmt::format("\n  {} of step {} waits for", graph_.describe(waiting->task), waiting->step);
    const char* separator = " ";
    for (const Edge& edge : graph_.tasks[static_cast<size_t>(waiting->task)].after) {
      const int from = waiting->step - edge.distance;
      if (from < base_) continue;
      const Slot* s = slot(from);
      if (s && s->done[static_cast<size_t>(edge.producer)]) continue;
      text += separator + graph_.describe(edge.producer);
      if (edge.distance > 0) text += fmt::format(" of step {}", from);
      separator = ", ";
    }
  }
  return text;
}

}  // namespace trainer
