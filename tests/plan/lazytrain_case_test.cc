#include "plan/lazytrain_case.h"

#include <gtest/gtest.h>

#include <ctime>

namespace trainer {
namespace {

// Processor time: other work on the machine does not count. The limit of wall time is only a guard.
double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// A feasible point within 3 % of the best in 10 s.
CheckpointPlan timed_plan(const CheckpointProblem& problem) {
  const double begin = cpu_seconds();
  CheckpointPlan plan = plan_checkpoints(problem, {.time_limit = 60, .relative_gap = 0.03});
  EXPECT_LT(cpu_seconds() - begin, 10);
  EXPECT_TRUE(plan.has_schedule());
  EXPECT_LE(plan.gap, 0.03);
  EXPECT_TRUE(plan_errors(problem, plan.schedule).empty());
  return plan;
}

TEST(LazyTrainCase, ThePublishedScheduleIsAPointOfTheProgram) {
  const CheckpointProblem problem = lazytrain_27b();
  const CheckpointPlan plan = plan_windows(problem, lazytrain_27b_homes());
  ASSERT_EQ(plan.status, MilpStatus::kOptimal);
  EXPECT_TRUE(plan_errors(problem, plan.schedule).empty());
  EXPECT_EQ(plan.schedule.count(BoundaryHome::kDevice), 30);
  EXPECT_EQ(plan.schedule.count(BoundaryHome::kHost), 21);
  EXPECT_EQ(plan.schedule.count(BoundaryHome::kStorage), 1);
  EXPECT_EQ(recomputed_layers(plan.schedule), 13);
  EXPECT_NEAR(plan.parts.objective() * 1e3, 182.0015, 1e-4);
  EXPECT_EQ(plan.parts.exposed_to_host + plan.parts.exposed_to_device, 0);
  EXPECT_EQ(plan.parts.exposed_write + plan.parts.exposed_read, 0);
}

TEST(LazyTrainCase, CapacitiesBindAndNoMoreThanThirteenLayersAreRecomputed) {
  const CheckpointPlan plan = timed_plan(lazytrain_27b());
  EXPECT_EQ(plan.schedule.count(BoundaryHome::kDevice), 30);
  EXPECT_EQ(plan.schedule.count(BoundaryHome::kHost), 21);
  EXPECT_LE(recomputed_layers(plan.schedule), 13);
  EXPECT_EQ(plan.parts.exposed_write + plan.parts.exposed_read, 0);
}

TEST(LazyTrainCase, WithoutStorageTheBudgetsDecide) {
  CheckpointProblem problem = lazytrain_27b();
  problem.storage_bytes = 0;
  CheckpointPlan plan = timed_plan(problem);
  EXPECT_EQ(plan.schedule.count(BoundaryHome::kDevice), 30);
  EXPECT_EQ(plan.schedule.count(BoundaryHome::kHost), 21);
  EXPECT_EQ(recomputed_layers(plan.schedule), 14);

  problem.host_bytes = int64_t{8} << 30;
  plan = timed_plan(problem);
  EXPECT_EQ(plan.schedule.count(BoundaryHome::kHost), 11);
  EXPECT_EQ(recomputed_layers(plan.schedule), 24);
}

TEST(LazyTrainCase, LayersOfUnequalCostAreSolvedInTime) {
  CheckpointProblem problem = lazytrain_27b();
  for (size_t j = 0; j < problem.forward_seconds.size(); ++j)
    problem.forward_seconds[j] *= 0.6 + 0.1 * static_cast<double>(j * 7 % 9);
  for (auto* link : {&problem.forward_to_host, &problem.backward_to_device}) {
    link->mandatory = link->capacity;
    for (int64_t& bytes : link->mandatory) bytes = bytes / 10 * 6;
  }
  problem.storage_bytes = 0;
  problem.longest_edge = 16;
  const CheckpointPlan plan = timed_plan(problem);
  EXPECT_EQ(recomputed_layers(plan.schedule), 14);
  EXPECT_LT(plan.parts.recompute, 14 * 0.014 * 0.7);  // the cheap ones
}

}  // namespace
}  // namespace trainer
