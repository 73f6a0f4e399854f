#include "sim/simulator.h"

#include <queue>

#include "base/error.h"

namespace trainer {

Simulation simulate(const StepGraph& graph, const CostTable& costs, int steps) {
  require(costs.seconds.size() == graph.tasks.size(), "{} costs for {} tasks", costs.seconds.size(),
          graph.tasks.size());
  struct Event {
    double end, begin;
    int64_t order;  // of dispatch: equal times end in it
    Instance instance;
    bool operator>(const Event& other) const {
      return end != other.end ? end > other.end : order > other.order;
    }
  };
  Dispatcher dispatcher(graph, steps);
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events;
  Simulation result;
  double now = 0;
  int64_t order = 0;
  while (!dispatcher.finished()) {
    for (size_t lane = 0; lane < graph.lanes.size(); ++lane)
      if (const auto instance = dispatcher.next(static_cast<LaneId>(lane)))
        events.push({now + costs.seconds[static_cast<size_t>(instance->task)], now, order++, *instance});
    if (events.empty()) throw RunError("the program cannot go on:" + dispatcher.blocked());
    const Event event = events.top();
    events.pop();
    now = event.end;
    dispatcher.complete(event.instance);
    result.runs.push_back({event.instance, event.begin, event.end});
  }
  result.end = now;
  return result;
}

}  // namespace trainer
