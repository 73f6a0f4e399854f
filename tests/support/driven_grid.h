// A grid of ranks, each on the stage runtime, whose tasks a test may watch and hold up.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "runtime/stage_runtime.h"
#include "support/bare_rank.h"

namespace trainer::testing {

// Called on the thread of the task's lane, before and after its work (after the start of a transfer).
using TaskHook = std::function<void(const StepGraph&, const Task&, Instance)>;

class HookedBinder : public KernelBinder {
 public:
  HookedBinder(KernelBinder& inner, TaskHook before, TaskHook after)
      : inner_(inner), before_(std::move(before)), after_(std::move(after)) {}
  RequestPtr start(const StepGraph& graph, Instance instance) override {
    const Task& task = graph.tasks[static_cast<size_t>(instance.task)];
    if (before_) before_(graph, task, instance);
    RequestPtr request = inner_.start(graph, instance);
    if (after_) after_(graph, task, instance);
    return request;
  }
  void finish(const StepGraph& graph, Instance instance) override { inner_.finish(graph, instance); }

 private:
  KernelBinder& inner_;
  TaskHook before_, after_;
};

class DrivenGrid {
 public:
  struct Run {
    TaskHook before, after;
    InProcessOptions network;
    std::function<void(RankCommunicators&, int rank)> communicators;  // may wrap them
    std::set<int64_t> traced_steps;
    bool accounts = false;  // keep the waiting of each step
  };
  struct Outcome {
    std::vector<std::vector<float>> state;         // by rank: what it owns of masters and moments
    std::vector<std::pair<double, double>> steps;  // loss, gradient norm
    std::vector<Timeline> timelines;               // by rank
    std::vector<std::vector<WaitLedger::StepAccount>> accounts;  // [rank][step]
    bool operator==(const Outcome& other) const { return state == other.state && steps == other.steps; }
  };

  explicit DrivenGrid(GridPlan plan)
      : plan_(std::move(plan)),
        config_(grid_config(plan_)),
        model_(plan_.model, config_.data.sequence_length),
        problem_(make_problem(config_, model_, *make_host_kernels(1), {})) {
    for (int r = 0; r < plan_.world(); ++r) {
      Problem mine = problem_;
      mine.ranks = {r};
      graphs_.push_back(build_step_graph(mine));
    }
  }

  const Problem& problem() const { return problem_; }
  const StepGraph& graph(int rank) const { return graphs_[static_cast<size_t>(rank)]; }

  // Throws what a rank threw; a minute without an end is taken for a deadlock.
  Outcome run(const Run& run) const {
    const auto world = static_cast<size_t>(plan_.world());
    auto communicators = make_in_process_group(plan_.world(), run.network);
    Outcome outcome;
    outcome.state.resize(world);
    outcome.timelines.resize(world);
    outcome.accounts.resize(world);
    const Clock clock;
    std::vector<WaitLedger> ledgers(world);
    std::vector<std::unique_ptr<BareRank>> ranks;
    for (size_t r = 0; r < world; ++r) {
      ranks.push_back(std::make_unique<BareRank>(plan_, config_, model_, graphs_[r], problem_,
                                                 *communicators[r], run.accounts ? &ledgers[r] : nullptr,
                                                 run.accounts ? &clock : nullptr));
      if (run.communicators) run.communicators(ranks.back()->communicators, static_cast<int>(r));
    }
    std::vector<std::exception_ptr> errors(world);
    {
      Watchdog watchdog(*communicators[0]);
      std::vector<std::jthread> threads;
      for (size_t r = 0; r < world; ++r)
        threads.emplace_back([&, r] {
          try {
            HookedBinder binder(ranks[r]->binder, run.before, run.after);
            RuntimeOptions options;
            options.traced_steps = run.traced_steps;
            options.clock = &clock;
            if (run.accounts) options.ledger = &ledgers[r];
            StageRuntime runtime(graphs_[r], binder, options);
            runtime.run(1, plan_.steps, nullptr);
            outcome.timelines[r] = runtime.take_timeline();
          } catch (const std::exception& error) {
            errors[r] = std::current_exception();
            communicators[r]->abort(error.what());
          }
        });
    }
    for (const auto& error : errors)
      if (error) std::rethrow_exception(error);
    for (size_t r = 0; r < world; ++r) {
      for (const OwnedBlock& block : ranks[r]->binder.blocks(graphs_[r]))
        for (const float* values : {block.master, block.moment1, block.moment2})
          outcome.state[r].insert(outcome.state[r].end(), values, values + block.range.count);
      for (int s = 1; s <= plan_.steps; ++s) {
        const StepResult result = ranks[r]->binder.take_result(s);
        if (r == 0) outcome.steps.emplace_back(result.loss, result.gradient_norm);
        if (run.accounts) outcome.accounts[r].push_back(ledgers[r].take(s));
      }
    }
    return outcome;
  }

 private:
  class Watchdog {
   public:
    explicit Watchdog(Communicator& world)
        : thread_([this, &world](const std::stop_token& stop) {
            std::unique_lock lock(mutex_);
            if (!changed_.wait_for(lock, stop, std::chrono::seconds(60), [] { return false; }) &&
                !stop.stop_requested())
              world.abort("no end after a minute");
          }) {}

   private:
    std::mutex mutex_;
    std::condition_variable_any changed_;
    std::jthread thread_;
  };

  GridPlan plan_;
  Config config_;
  Model model_;
  Problem problem_;
  std::vector<StepGraph> graphs_;
};

}  // namespace trainer::testing
