#include "runtime/stage_runtime.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "comm/back_off.h"
#include "runtime/attribution.h"

namespace trainer {
namespace {

bool moves_data_between_ranks(LaneKind kind) {
  switch (kind) {
    case LaneKind::kReceiveForward:
    case LaneKind::kSendForward:
    case LaneKind::kReceiveBackward:
    case LaneKind::kSendBackward:
    case LaneKind::kCollective:
      return true;
    default:
      return false;
  }
}

// One call of StageRuntime::run.
class Run {
 public:
  Run(const StepGraph& graph, KernelBinder& binder, const RuntimeOptions& options, Timeline& timeline,
      int64_t first_step, int steps, const std::function<void(int64_t)>& on_step)
      : graph_(graph),
        binder_(binder),
        options_(options),
        timeline_(timeline),
        first_step_(first_step),
        on_step_(on_step),
        dispatcher_(graph, steps) {}

  void execute() {
    std::vector<LaneId> communication, others;
    LaneId main = kNone;
    for (size_t i = 0; i < graph_.lanes.size(); ++i) {
      const auto id = static_cast<LaneId>(i);
      if (moves_data_between_ranks(graph_.lanes[i].kind))
        communication.push_back(id);
      else if (main == kNone && graph_.lanes[i].kind == LaneKind::kCompute)
        main = id;
      else
        others.push_back(id);
    }
    {
      if (options_.ledger && main != kNone)
        attribution_.emplace(graph_, dispatcher_, *options_.ledger, main, first_step_, now());
      std::vector<std::jthread> workers;
      if (!communication.empty()) workers.emplace_back([&] { guarded([&] { communicate(communication); }); });
      for (LaneId lane : others) workers.emplace_back([this, lane] { guarded([&] { work(lane, false); }); });
      guarded([&] { work(main, true); });
    }
    if (error_) std::rethrow_exception(error_);
    if (attribution_) attribution_->run_ends(now());
  }

 private:
  template <class Body>
  void guarded(Body&& body) {
    try {
      body();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
      stopping_ = true;
      changed_.notify_all();
    }
  }

  double now() const { return options_.clock ? options_.clock->now() : 0; }
  int64_t absolute(Instance i) const { return first_step_ + i.step; }
  const Task& task(TaskId id) const { return graph_.tasks[static_cast<size_t>(id)]; }

  // The worker of a lane whose tasks are done where they are started. The main one may have no lane (a rank
  // without layers); it stays until all is done, to tell of the steps.
  void work(LaneId lane, bool main) {
    Ahead ahead{*this, std::nullopt};  // goes after the lock
    std::unique_lock lock(mutex_);
    const auto untold = [&] { return main && dispatcher_.steps_completed() > reported_; };
    while (true) {
      if (untold()) {
        lock.unlock();
        report_steps();
        lock.lock();
      }
      std::optional<Instance> instance;
      changed_.wait(lock, [&] {
        return stopping_ || (lane != kNone && (instance = dispatcher_.next(lane))) || untold() ||
               (main ? dispatcher_.finished() : exhausted(lane));
      });
      if (stopping_) return;
      if (!instance && untold()) continue;
      if (!instance) return;
      const auto started_ahead = std::exchange(ahead.instance, std::nullopt);
      require(!started_ahead || *started_ahead == *instance,
              "a lane goes on with another task than expected");
      const double started = now();
      const bool booked = main && attribution_ && is_main_path(task(instance->task).kind);
      if (booked) attribution_->main_path_starts(*instance, started);
      lock.unlock();
      double own_start = started;
      if (instance->absorbed != kNone) {
        perform({instance->absorbed, instance->step});
        own_start = now();
      }
      if (!started_ahead) start_here(*instance);
      if (main) ahead.instance = start_next_behind(*instance);
      binder_.finish(graph_, *instance);
      const double ended = now();
      lock.lock();
      if (instance->absorbed != kNone) {
        if (booked) options_.ledger->ran(absolute(*instance), TaskKind::kRecover, own_start - started);
        record({instance->absorbed, instance->step}, started, own_start);
      }
      if (booked) options_.ledger->ran(absolute(*instance), task(instance->task).kind, ended - own_start);
      completed(*instance, own_start, ended);
    }
  }

  // What was started behind the task under way. Where the lane stops before its turn, it is waited for:
  // nobody else knows that it is in the queue.
  struct Ahead {
    Run& run;
    std::optional<Instance> instance;
    ~Ahead() {
      if (!instance) return;
      try {
        run.binder_.finish(run.graph_, *instance);
      } catch (const std::exception& error) {
        log_warning("{}: {}", run.graph_.describe(instance->task), error.what());
      }
    }
  };

  void start_here(Instance instance) {
    // describe() is only for the message: it is not made for every task.
    if (binder_.start(graph_, instance))
      require(false, "{} is not a transfer", graph_.describe(instance.task));
  }
  void perform(Instance instance) {
    start_here(instance);
    binder_.finish(graph_, instance);
  }

  // What follows `running` on its lane, if that is certain and could be started.
  std::optional<Instance> start_next_behind(Instance running) {
    std::optional<Instance> next;
    {
      const std::lock_guard lock(mutex_);
      next = dispatcher_.follows(running);
    }
    if (next && binder_.start_behind(graph_, *next)) return next;
    return std::nullopt;
  }

  bool exhausted(LaneId lane) const { return dispatcher_.exhausted(lane); }

  struct Pending {
    Instance instance;
    RequestPtr request;
    double started;
  };

  void communicate(const std::vector<LaneId>& lanes) {
    std::vector<Pending> pending;
    BackOff back_off;
    while (true) {
      std::vector<Instance> fresh;
      {
        std::unique_lock lock(mutex_);
        const auto take = [&] {
          for (LaneId lane : lanes)
            if (auto instance = dispatcher_.next(lane)) fresh.push_back(*instance);
          return !fresh.empty();
        };
        const auto all_exhausted = [&] {
          return std::all_of(lanes.begin(), lanes.end(), [&](LaneId lane) { return exhausted(lane); });
        };
        if (!stopping_) take();
        if (fresh.empty() && pending.empty())
          changed_.wait(lock, [&] { return stopping_ || take() || all_exhausted(); });
        if (stopping_) return;
        if (fresh.empty() && pending.empty()) return;
      }
      for (Instance instance : fresh) {
        const double started = now();
        RequestPtr request = binder_.start(graph_, instance);
        pending.push_back({instance, std::move(request), started});
      }
      const size_t moved = std::erase_if(pending, [&](Pending& p) {
        if (p.request && !p.request->test()) return false;
        binder_.finish(graph_, p.instance);
        const double ended = now();
        const std::lock_guard lock(mutex_);
        completed(p.instance, p.started, ended);
        return true;
      });
      if (moved > 0 || !fresh.empty())
        back_off.reset();
      else
        back_off.pause();
    }
  }

  // With the lock held.
  void completed(Instance instance, double started, double ended) {
    record(instance, started, ended);
    dispatcher_.complete(instance);
    changed_.notify_all();
  }

  void record(Instance instance, double started, double ended) {
    if (attribution_) attribution_->ran(instance, started, ended);
    if (!options_.traced_steps.count(absolute(instance))) return;
    const Task& t = task(instance.task);
    timeline_.events.push_back({graph_.describe(instance.task), name_of(t.kind),
                                track_of(graph_.lanes[static_cast<size_t>(t.lane)]), t.at.rank,
                                static_cast<int32_t>(absolute(instance)), t.at.layer_begin, t.at.micro_batch,
                                started, ended});
  }

  void report_steps() {
    while (true) {
      {
        const std::lock_guard lock(mutex_);
        if (reported_ >= dispatcher_.steps_completed()) return;
        ++reported_;
      }
      if (on_step_) on_step_(first_step_ + reported_ - 1);
    }
  }

  const StepGraph& graph_;
  KernelBinder& binder_;
  const RuntimeOptions& options_;
  Timeline& timeline_;
  const int64_t first_step_;
  const std::function<void(int64_t)>& on_step_;

  std::mutex mutex_;
  std::condition_variable changed_;
  Dispatcher dispatcher_;  // guarded by mutex_, as all below
  std::optional<WaitAttribution> attribution_;
  std::exception_ptr error_;
  bool stopping_ = false;
  int reported_ = 0;
};

}  // namespace

StageRuntime::StageRuntime(const StepGraph& graph, KernelBinder& binder, RuntimeOptions options)
    : graph_(graph), binder_(binder), options_(std::move(options)) {}

void StageRuntime::run(int64_t first_step, int steps, const std::function<void(int64_t)>& on_step) {
  if (steps <= 0) return;
  Run(graph_, binder_, options_, timeline_, first_step, steps, on_step).execute();
}

Timeline StageRuntime::take_timeline() { return std::exchange(timeline_, {}); }

}  // namespace trainer
