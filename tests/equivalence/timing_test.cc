// When tasks run is left to chance and to the links; what is learned is not.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "support/driven_grid.h"
#include "support/thinning.h"

namespace trainer {
namespace {

using testing::DrivenGrid;
using testing::GridPlan;
using Conditions = DrivenGrid::Run;
using Outcome = DrivenGrid::Outcome;
using namespace std::chrono_literals;

// Two stages of two layers, two replicas, all mechanisms.
GridPlan small_plan() {
  GridPlan plan;
  plan.stages = 2;
  plan.replicas = 2;
  plan.micro_batches = 6;
  plan.steps = 2;
  plan.model.num_layers = 4;
  plan.activation = ActivationPolicy::kCheckpoint;
  plan.last_stage_keeps = false;
  plan.zero_stage = 2;
  return plan;
}

Outcome without_passes(GridPlan plan) {
  plan.passes = {};
  return DrivenGrid(plan).run({});
}

// One task in four sleeps, up to `longest`; which ones follows from the seed.
testing::TaskHook random_sleep(uint64_t seed, std::chrono::microseconds longest) {
  return [=](const StepGraph&, const Task& task, Instance instance) {
    std::mt19937_64 random(seed * 1000003 + static_cast<uint64_t>(instance.task * 31 + instance.step) * 17 +
                           static_cast<uint64_t>(task.at.rank));
    random.discard(2);
    if (random() % 4 == 0)
      std::this_thread::sleep_for(
          std::chrono::microseconds(random() % static_cast<uint64_t>(longest.count())));
  };
}

class RandomDelays : public ::testing::TestWithParam<int> {};

TEST_P(RandomDelays, NeitherBlockNorChangeABit) {
  constexpr int kSeeds = testing::kThinned ? 10 : 100;
  GridPlan plan = small_plan();
  plan.recovery_buffers = GetParam() % 3;
  plan.shard_gradients = GetParam() % 4 == 3;
  if (GetParam() % 2) {
    plan.clip = 0;
    plan.skip_non_finite = false;
  }
  const Outcome expected = without_passes(plan);
  ASSERT_FALSE(expected.state[3].empty());
  const DrivenGrid grid(plan);
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const uint64_t all = static_cast<uint64_t>(GetParam()) * kSeeds + seed;
    SCOPED_TRACE(all);
    Conditions run;
    run.before = random_sleep(2 * all, 100us);
    run.after = random_sleep(2 * all + 1, 100us);
    run.network.delivery = seed % 2 ? Delivery::kRendezvous : Delivery::kEager;
    run.network.faults = {all, 100us};
    ASSERT_TRUE(grid.run(run) == expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Hundreds, RandomDelays, ::testing::Range(0, 10));

struct Recoveries {
  std::atomic<int> ahead{0}, by_backward{0};
  testing::TaskHook hook() {
    return [this](const StepGraph& graph, const Task& task, Instance instance) {
      if (task.kind == TaskKind::kRecover) ++ahead;
      if (instance.absorbed == kNone) return;
      EXPECT_EQ(graph.tasks[static_cast<size_t>(instance.absorbed)].kind, TaskKind::kRecover);
      --ahead;  // was started for the backward
      ++by_backward;
    };
  }
};

// One stage never waits: no window for recovering anything ahead of its backward.
TEST(ForwardSideRecovery, WithoutAWindowTheBackwardRecovers) {
  GridPlan plan = small_plan();
  plan.stages = plan.replicas = 1;
  plan.zero_stage = 0;
  plan.passes = pass_names();
  for (int buffers : {1, 0}) {
    plan.recovery_buffers = buffers;
    Recoveries count;
    Conditions run;
    run.before = count.hook();
    EXPECT_TRUE(DrivenGrid(plan).run(run) == without_passes(plan));
    EXPECT_EQ(count.ahead, 0);
    EXPECT_EQ(count.by_backward, 4 * 6 * 2);  // layers, micro-batches, steps
  }
}

TEST(ForwardSideRecovery, WideGapsAreUsedAsFarAsThereAreBuffers) {
  GridPlan plan = small_plan();
  plan.replicas = 1;
  plan.zero_stage = 0;
  const Outcome expected = without_passes(plan);
  std::map<int, int> ahead;
  for (int buffers : {1, 2, 0}) {
    plan.recovery_buffers = buffers;
    Recoveries count;
    Conditions run;
    run.before = count.hook();
    // Messages take long, so that gaps of the main path are wide.
    run.after = [](const StepGraph&, const Task& task, Instance) {
      if (task.kind == TaskKind::kReceive) std::this_thread::sleep_for(2ms);
    };
    EXPECT_TRUE(DrivenGrid(plan).run(run) == expected);
    EXPECT_EQ(count.ahead + count.by_backward, 4 * 6 * 2);
    ahead[buffers] = count.ahead;
  }
  EXPECT_GT(ahead[1], 0);
  EXPECT_GT(ahead[2], 4 * 6 * 2 / 4);
  EXPECT_GE(ahead[0], ahead[1]);
}

TEST(MainPath, StateTasksNeverRunWithinIt) {
  GridPlan plan = small_plan();
  plan.shard_gradients = true;
  const DrivenGrid grid(plan);
  Conditions run;
  run.traced_steps = {1, 2};
  thread_local const Task* within = nullptr;
  std::atomic<int> state_tasks{0};
  run.before = [&](const StepGraph& graph, const Task& task, Instance) {
    EXPECT_EQ(within, nullptr) << graph.describe(static_cast<TaskId>(&task - graph.tasks.data()))
                               << " began within another task";
    within = &task;
    std::this_thread::sleep_for(50us);
  };
  run.after = [&](const StepGraph&, const Task& task, Instance) {
    within = nullptr;
    if (!is_main_path(task.kind)) ++state_tasks;
  };
  const Outcome outcome = grid.run(run);
  EXPECT_GT(state_tasks, 0);
  for (const Timeline& timeline : outcome.timelines) {
    std::vector<TimelineEvent> compute;
    for (const TimelineEvent& e : timeline.events)
      if (e.lane == "compute") compute.push_back(e);
    std::sort(compute.begin(), compute.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
    ASSERT_FALSE(compute.empty());
    for (size_t i = 1; i < compute.size(); ++i)
      EXPECT_LE(compute[i - 1].end, compute[i].begin) << compute[i].name << " within " << compute[i - 1].name;
  }
}

// By how much of a rank's steps its accounts miss them, for the rank that misses most.
double worst_miss(const GridPlan& plan) {
  Conditions run;
  run.accounts = true;
  run.after = [](const StepGraph&, const Task& task, Instance) {
    switch (task.kind) {
      case TaskKind::kForward:
        return std::this_thread::sleep_for(12ms);
      case TaskKind::kBackward:
        return std::this_thread::sleep_for(24ms);
      case TaskKind::kRecover:
      case TaskKind::kUpdateShard:
      case TaskKind::kGradSync:
      case TaskKind::kPrefetchWeights:
        return std::this_thread::sleep_for(8ms);
      default:
        return;
    }
  };
  double worst = 0;
  for (const auto& of_rank : DrivenGrid(plan).run(run).accounts) {
    double steps = 0, accounted = 0;
    for (size_t s = 1; s < of_rank.size(); ++s) {
      const ExposedTime& e = of_rank[s].exposed;
      steps += of_rank[s].end - of_rank[s - 1].end;
      accounted +=
          of_rank[s].main_path + e.bubble + e.boundary + e.grad_sync + e.update + e.prefetch + e.recovery;
      EXPECT_GT(e.recovery, 0.0);
    }
    worst = std::max(worst, std::abs(accounted / steps - 1));
  }
  return worst;
}

// The accounts of a rank make up its steps when every task takes long against what the runtime does between
// two. A machine that is busy with other work holds the runtime up there, so the best of some attempts
// counts.
TEST(Accounts, AddUpToTheStep) {
  constexpr int kAttempts = 4;
  constexpr double kMost = 0.02;
  GridPlan plan = small_plan();
  plan.micro_batches = 4;
  plan.steps = 3;
  for (const auto& passes : {std::vector<std::string>{}, pass_names()}) {
    plan.passes = passes;
    SCOPED_TRACE(fmt::format("{}", fmt::join(passes, ",")));
    double best = worst_miss(plan);
    for (int i = 1; i < kAttempts && best > kMost; ++i) best = std::min(best, worst_miss(plan));
    EXPECT_LE(best, kMost);
  }
}

}  // namespace
}  // namespace trainer
