#include "runtime/serial_interpreter.h"

#include <algorithm>
#include <random>
#include <vector>

#include "base/error.h"

namespace trainer {
namespace {

// Polls without success after which transfers are taken to be stuck; in-process transfers need a few.
constexpr int kPatience = 1'000'000;

struct Pending {
  Instance instance;
  RequestPtr request;
};

}  // namespace

void interpret_serially(const StepGraph& graph, int steps, uint64_t seed,
                        const std::function<KernelBinder&(int rank)>& binder_of) {
  Dispatcher dispatcher(graph, steps);
  std::mt19937_64 random(seed);
  std::vector<LaneId> lanes(graph.lanes.size());
  for (size_t i = 0; i < lanes.size(); ++i) lanes[i] = static_cast<LaneId>(i);
  std::vector<Pending> pending;
  const auto binder = [&](Instance i) -> KernelBinder& {
    return binder_of(graph.tasks[static_cast<size_t>(i.task)].at.rank);
  };
  int idle = 0;
  while (!dispatcher.finished()) {
    bool moved = false;
    std::shuffle(lanes.begin(), lanes.end(), random);
    for (LaneId lane : lanes) {
      const auto instance = dispatcher.next(lane);
      if (!instance) continue;
      moved = true;
      if (instance->absorbed != kNone) {
        const Instance first{instance->absorbed, instance->step};
        require(!binder(first).start(graph, first), "{} is not a transfer", graph.describe(first.task));
        binder(first).finish(graph, first);
      }
      if (RequestPtr request = binder(*instance).start(graph, *instance)) {
        pending.push_back({*instance, std::move(request)});
      } else {
        binder(*instance).finish(graph, *instance);
        dispatcher.complete(*instance);
      }
      if (random() % 2) break;  // look at the transfers between tasks, in any proportion
    }
    std::erase_if(pending, [&](Pending& p) {
      if (!p.request->test()) return false;
      binder(p.instance).finish(graph, p.instance);
      dispatcher.complete(p.instance);
      return moved = true;
    });
    idle = moved ? 0 : idle + 1;
    if (idle > kPatience || (!moved && pending.empty()))
      run_error("the program cannot go on:{}", dispatcher.blocked());
  }
}

}  // namespace trainer
