#include "schedule/dispatcher.h"

#include <algorithm>

#include "base/error.h"

namespace trainer {

Dispatcher::Dispatcher(const StepGraph& graph, int steps)
    : graph_(graph),
      steps_(steps),
      window_(graph.max_distance + 2),
      first_consumer_(graph.tasks.size() + 1),
      info_(graph.tasks.size()),
      slots_(static_cast<size_t>(window_)),
      lanes_(graph.lanes.size()) {
  for (const Task& task : graph.tasks)
    for (const Edge& edge : task.after) ++first_consumer_[static_cast<size_t>(edge.producer) + 1];
  for (size_t id = 0; id < graph.tasks.size(); ++id) first_consumer_[id + 1] += first_consumer_[id];
  consumers_.resize(first_consumer_.back());
  std::vector<size_t> next = first_consumer_;
  for (size_t id = 0; id < graph.tasks.size(); ++id) {
    const Task& task = graph.tasks[id];
    TaskInfo& info = info_[id];
    info.lane = task.lane;
    for (const Edge& edge : task.after) {
      consumers_[next[static_cast<size_t>(edge.producer)]++] = {static_cast<TaskId>(id), edge.distance};
      if (edge.distance == 0) ++info.edges_within;
    }
    if (info.edges_within < static_cast<int>(task.after.size()))
      reach_back_.push_back(static_cast<TaskId>(id));
    if (task.absorber != kNone) info_[static_cast<size_t>(task.absorber)].absorbs = static_cast<TaskId>(id);
  }
  for (size_t l = 0; l < graph.lanes.size(); ++l) {
    const Lane& lane = graph.lanes[l];
    lanes_[l].untaken = static_cast<int64_t>(lane.program.size()) * steps;
    for (size_t position = 0; position < lane.program.size(); ++position) {
      const TaskId task = lane.program[position];
      info_[static_cast<size_t>(task)].position = static_cast<int>(position);
      if (lane.order == LaneOrder::kPriority && !is_main_path(graph.tasks[static_cast<size_t>(task)].kind))
        info_[static_cast<size_t>(task)].background = true;
      else
        lanes_[l].in_order.push_back(task);
    }
  }
  for (size_t id = 0; id < graph.tasks.size(); ++id)
    if (graph.tasks[id].absorber != kNone && !info_[id].background)
      require(false, "{} may be absorbed, but its lane is FIFO", graph.describe(static_cast<TaskId>(id)));
  total_ = static_cast<int64_t>(graph.tasks.size()) * steps;
  admit_steps();
}

void Dispatcher::admit_steps() {
  const size_t count = graph_.tasks.size();
  while (admitted_ < steps_ && admitted_ < base_ + window_ && count > 0) {
    const int step = admitted_++;
    Slot& s = slot(step);
    s.step = step;
    s.incomplete = static_cast<int>(count);
    s.tasks.assign(count, {});
    for (size_t id = 0; id < count; ++id) s.tasks[id].pending = info_[id].edges_within;
    for (TaskId id : reach_back_)
      for (const Edge& edge : graph_.tasks[static_cast<size_t>(id)].after) {
        const int from = step - edge.distance;
        // Otherwise complete, or before the first step.
        if (edge.distance > 0 && in_flight(from) && !state(from, edge.producer).done)
          ++state(step, id).pending;
      }
    for (size_t id = 0; id < count; ++id)
      if (s.tasks[id].pending == 0) became_ready(step, static_cast<TaskId>(id));
  }
}

std::tuple<int, int, int> Dispatcher::rank_in_waiting(int step, TaskId task) const {
  return {step, -graph_.tasks[static_cast<size_t>(task)].priority, info(task).position};
}

void Dispatcher::became_ready(int step, TaskId task) {
  if (info(task).background)
    lanes_[static_cast<size_t>(info(task).lane)].waiting.insert(rank_in_waiting(step, task));
}

void Dispatcher::take(Slot& slot, TaskId task) {
  LaneState& lane = lanes_[static_cast<size_t>(info(task).lane)];
  slot.tasks[static_cast<size_t>(task)].taken = true;
  --lane.untaken;
  if (info(task).background) lane.waiting.erase(rank_in_waiting(slot.step, task));
}

std::optional<Instance> Dispatcher::next(LaneId id) {
  LaneState& state = lanes_[static_cast<size_t>(id)];
  if (state.busy) return std::nullopt;
  if (!state.in_order.empty() && state.step < admitted_) {
    const TaskId task = state.in_order[state.index];
    Slot& s = slot(state.step);
    Instance instance{task, state.step, kNone};
    const int pending = s.tasks[static_cast<size_t>(task)].pending;
    bool may_start = pending == 0;
    if (const TaskId other = info(task).absorbs; pending == 1 && other != kNone &&
                                                 !s.tasks[static_cast<size_t>(other)].taken &&
                                                 s.tasks[static_cast<size_t>(other)].pending == 0) {
      take(s, other);
      instance.absorbed = other;
      may_start = true;
    }
    if (may_start) {
      take(s, task);
      state.busy = true;
      if (++state.index == state.in_order.size()) {
        state.index = 0;
        ++state.step;
      }
      return instance;
    }
  }
  if (state.waiting.empty()) return std::nullopt;
  const auto [step, priority, position] = *state.waiting.begin();
  const Instance instance{graph_.lanes[static_cast<size_t>(id)].program[static_cast<size_t>(position)], step,
                          kNone};
  take(slot(step), instance.task);
  state.busy = true;
  return instance;
}

void Dispatcher::finish(int step, TaskId task) {
  const auto index = static_cast<size_t>(task);
  Slot& s = slot(step);
  if (!in_flight(step) || !s.tasks[index].taken || s.tasks[index].done)
    require(false, "{} of step {} completed without running", graph_.describe(task), step);
  s.tasks[index].done = true;
  for (size_t i = first_consumer_[index]; i < first_consumer_[index + 1]; ++i) {
    const int at = step + consumers_[i].distance;
    if (!in_flight(at)) continue;  // not admitted yet: counted when it is
    const TaskId consumer = consumers_[i].producer;
    TaskState& target = state(at, consumer);
    target.released_by = task;
    if (--target.pending == 0 && !target.taken) became_ready(at, consumer);
  }
  --s.incomplete;
  ++completed_;
}

void Dispatcher::complete(Instance instance) {
  lanes_[static_cast<size_t>(info(instance.task).lane)].busy = false;
  // The absorbed task's end must not become what released its absorber.
  const TaskId released = released_by(instance);
  if (instance.absorbed != kNone) finish(instance.step, instance.absorbed);
  state(instance.step, instance.task).released_by = released;
  finish(instance.step, instance.task);
  while (base_ < admitted_ && slot(base_).incomplete == 0) ++base_;
  admit_steps();
}

TaskId Dispatcher::released_by(Instance instance) const {
  return in_flight(instance.step) ? state(instance.step, instance.task).released_by : kNone;
}

bool Dispatcher::waits_only_for(Instance instance, TaskId producer) const {
  const LaneId lane = info(instance.task).lane;
  return in_flight(instance.step) && state(instance.step, instance.task).pending == 1 &&
         !state(instance.step, producer).done && !busy(lane) && awaited(lane) == instance;
}

std::optional<Instance> Dispatcher::follows(Instance running) const {
  const auto next = awaited(info(running.task).lane);
  if (!next || next->step != running.step) return std::nullopt;
  int others = state(next->step, next->task).pending;
  for (const Edge& edge : graph_.tasks[static_cast<size_t>(next->task)].after)
    if (edge.distance == 0 && (edge.producer == running.task || edge.producer == running.absorbed)) --others;
  return others == 0 ? next : std::nullopt;
}

std::optional<Instance> Dispatcher::awaited(LaneId id) const {
  const LaneState& state = lanes_[static_cast<size_t>(id)];
  if (state.in_order.empty() || state.step >= steps_) return std::nullopt;
  return Instance{state.in_order[state.index], state.step, kNone};
}

std::string Dispatcher::blocked() const {
  std::string text;
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    const auto waiting = awaited(static_cast<LaneId>(lane));
    if (!waiting || lanes_[lane].busy || !in_flight(waiting->step) ||
        state(waiting->step, waiting->task).pending == 0)
      continue;
    text += fmt::format("\n  {} of step {} waits for", graph_.describe(waiting->task), waiting->step);
    const char* separator = " ";
    for (const Edge& edge : graph_.tasks[static_cast<size_t>(waiting->task)].after) {
      const int from = waiting->step - edge.distance;
      if (!in_flight(from) || state(from, edge.producer).done) continue;
      text += separator + graph_.describe(edge.producer);
      if (edge.distance > 0) text += fmt::format(" of step {}", from);
      separator = ", ";
    }
  }
  return text;
}

}  // namespace trainer
