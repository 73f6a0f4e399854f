#include "plan/checkpoint_plan.h"

#include <gtest/gtest.h>

#include <random>

#include "plan/checkpoint_oracle.h"
#include "support/thinning.h"

namespace trainer {
namespace {

using testing::CheckpointOracle;

// Small whole numbers of this many bytes, so that budgets are met exactly, windows overflow, and some
// instances have no plan.
constexpr int64_t kGrain = 1 << 20;

CheckpointProblem random_problem(uint64_t seed, int layers) {
  std::mt19937_64 random(seed);
  const auto between = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<uint64_t>(high - low + 1));
  };
  CheckpointProblem p;
  const bool even = between(0, 2) == 0;
  for (int i = 0; i <= layers; ++i) p.boundary_bytes.push_back((even ? 4 : between(2, 6)) * kGrain);
  for (int j = 0; j < layers; ++j) p.forward_seconds.push_back(between(1, 9));
  p.device_bytes = between(8, 8 + 3 * layers) * kGrain;
  p.host_bytes = between(0, 1) * between(2, 2 * layers) * kGrain;
  p.storage_bytes = between(0, 1) * between(2, 2 * layers) * kGrain;
  for (int w = 0; w < layers; ++w) p.forward_workspace.push_back(between(0, 2) * kGrain);
  for (int w = 0; w <= layers; ++w) p.backward_workspace.push_back(between(0, 3) * kGrain);
  const auto windows = [&](int count, double rate, int most) {
    TransferWindows link;
    link.bytes_per_second = rate * kGrain;
    for (int w = 0; w < count; ++w) {
      link.capacity.push_back(between(0, most) * kGrain);
      link.mandatory.push_back(between(0, 2) * kGrain);
    }
    return link;
  };
  p.forward_to_host = windows(layers, 2, 6);
  p.forward_to_device = windows(layers, 2, 6);
  p.backward_to_host = windows(layers + 1, 2, 6);
  p.backward_to_device = windows(layers + 1, 2, 6);
  p.storage_write = windows(layers, 1, 5);
  p.storage_read = windows(layers + 1, 1, 5);
  p.checkpoint_price = 1e-3;
  p.storage_price = 1e-2;
  p.longest_edge = between(0, 1) * between(1, layers);
  return p;
}

TEST(CheckpointPlan, EqualsTheBestOfAllSchedules) {
  int infeasible = 0, stored = 0, sent = 0, recomputed = 0, waited = 0;
  testing::Thinning thinning;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    if (thinning.skips()) continue;
    const int layers = seed % 25 == 0 ? 8 : 1 + static_cast<int>(seed % 7);
    const CheckpointProblem problem = random_problem(seed, layers);
    const CheckpointPlan plan = plan_checkpoints(problem);
    const std::optional<double> best = CheckpointOracle(problem).best();
    ASSERT_EQ(plan.has_schedule(), best.has_value()) << "seed " << seed;
    if (!best) {
      ASSERT_EQ(plan.status, MilpStatus::kInfeasible) << "seed " << seed;
      ++infeasible;
      continue;
    }
    ASSERT_EQ(plan.status, MilpStatus::kOptimal) << "seed " << seed;
    ASSERT_NEAR(plan.best_bound, *best, 1e-6 * *best) << "seed " << seed;
    ASSERT_NEAR(plan.parts.objective(), *best, 1e-6 * *best) << "seed " << seed;
    for (const std::string& error : plan_errors(problem, plan.schedule))
      ADD_FAILURE() << "seed " << seed << ": " << error;
    stored += plan.schedule.count(BoundaryHome::kStorage) > 0;
    sent += plan.schedule.count(BoundaryHome::kHost) > 0;
    recomputed += plan.parts.recompute > 0;
    waited += plan.parts.exposed_to_host + plan.parts.exposed_to_device > 0;
  }
  if (testing::kThinned) return;
  // The instances are not all of one kind.
  EXPECT_GT(infeasible, 20);
  EXPECT_GT(stored, 20);
  EXPECT_GT(sent, 50);
  EXPECT_GT(recomputed, 100);
  EXPECT_GT(waited, 5);
}

std::vector<BoundaryHome> homes_of(const CheckpointSchedule& schedule) {
  std::vector<BoundaryHome> homes;
  for (const BoundaryPlacement& b : schedule.boundaries) homes.push_back(b.home);
  return homes;
}

TEST(CheckpointPlan, WindowsOfGivenHomesEqualTheLinearProgram) {
  int feasible = 0, infeasible = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const int layers = 2 + static_cast<int>(seed % 6);
    CheckpointProblem problem = random_problem(seed, layers);
    problem.longest_edge = 0;
    problem.host_bytes = problem.storage_bytes = 12 * kGrain;
    problem.device_bytes += 12 * kGrain;
    std::mt19937_64 random(seed);
    std::vector<BoundaryHome> homes(static_cast<size_t>(layers) + 1, BoundaryHome::kDevice);
    for (int i = 1; i < layers; ++i) homes[static_cast<size_t>(i)] = static_cast<BoundaryHome>(random() % 4);
    const CheckpointPlan plan = plan_windows(problem, homes);
    std::optional<double> best;
    for (bool storage_may_wait : {false, true})
      if (!best) best = CheckpointOracle(problem).best_windows(homes, storage_may_wait);
    ASSERT_EQ(plan.has_schedule(), best.has_value()) << "seed " << seed;
    ++(best ? feasible : infeasible);
    if (!best) continue;
    ASSERT_NEAR(plan.parts.objective(), *best, 1e-6 * *best) << "seed " << seed;
    EXPECT_EQ(homes_of(plan.schedule), homes);
  }
  EXPECT_GT(feasible, 100);
  EXPECT_GT(infeasible, 10);
}

TEST(CheckpointPlan, AFixedIntervalIsAPointOfTheProgramAndNeverBetter) {
  int compared = 0, better = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    CheckpointProblem problem = random_problem(seed, 8);
    problem.longest_edge = 0;
    const CheckpointSchedule fixed = fixed_interval(8, 4);
    const CheckpointPlan windows = plan_windows(problem, homes_of(fixed));
    ASSERT_EQ(windows.has_schedule(), plan_errors(problem, fixed).empty()) << "seed " << seed;
    if (!windows.has_schedule()) continue;
    EXPECT_EQ(windows.schedule, fixed);
    const double objective = plan_parts(problem, fixed).objective();
    const CheckpointPlan plan = plan_checkpoints(problem);
    ASSERT_TRUE(plan.has_schedule());
    EXPECT_LE(plan.parts.objective(), objective * (1 + 1e-9));
    better += plan.parts.objective() < objective * 0.99;
    ++compared;
  }
  EXPECT_GT(compared, 20);
  EXPECT_GT(better, 20);
}

// Two layers that take 10 s, and room for one boundary between them only in storage.
CheckpointProblem needs_storage(double storage_rate) {
  CheckpointProblem p;
  p.boundary_bytes.assign(5, 100);
  p.forward_seconds.assign(4, 10);
  p.device_bytes = 300;
  p.storage_bytes = 100;
  const auto link = [](int windows, double rate) {
    return TransferWindows{
        rate, std::vector<int64_t>(static_cast<size_t>(windows), static_cast<int64_t>(rate)), {}};
  };
  for (TransferWindows* forward : {&p.forward_to_host, &p.forward_to_device}) *forward = link(4, 100);
  for (TransferWindows* backward : {&p.backward_to_host, &p.backward_to_device}) *backward = link(5, 100);
  p.storage_write = link(4, storage_rate);
  p.storage_read = link(5, storage_rate);
  return p;
}

TEST(CheckpointPlan, StorageIsUsedWhereItHides) {
  const CheckpointPlan plan = plan_checkpoints(needs_storage(100));
  ASSERT_EQ(plan.status, MilpStatus::kOptimal);
  EXPECT_EQ(plan.schedule.count(BoundaryHome::kStorage), 1);
  EXPECT_EQ(plan.parts.exposed_write + plan.parts.exposed_read, 0);
}

TEST(CheckpointPlan, StorageThatWouldBeWaitedForIsNotUsedUnlessThereIsNoPlanWithout) {
  // Waiting 8 s would cost less than recomputing a layer: the rule is about hiding, not about the price.
  CheckpointProblem problem = needs_storage(20);
  CheckpointPlan plan = plan_checkpoints(problem);
  ASSERT_EQ(plan.status, MilpStatus::kOptimal);
  EXPECT_EQ(plan.schedule.count(BoundaryHome::kStorage), 0);

  problem.longest_edge = 1;  // every boundary must be kept
  problem.host_bytes = 100;
  problem.storage_bytes = 200;
  plan = plan_checkpoints(problem);
  ASSERT_EQ(plan.status, MilpStatus::kOptimal);
  EXPECT_GT(plan.schedule.count(BoundaryHome::kStorage), 0);
  EXPECT_GT(plan.parts.exposed_write + plan.parts.exposed_read, 0);
  EXPECT_TRUE(plan_errors(problem, plan.schedule).empty());
}

TEST(CheckpointPlan, MandatoryTrafficIsReportedAndNotCharged) {
  CheckpointProblem problem = needs_storage(100);
  const CheckpointPlanParts before = plan_checkpoints(problem).parts;
  problem.forward_to_device.mandatory.assign(4, 130);
  problem.backward_to_host.mandatory.assign(5, 150);
  const CheckpointPlanParts after = plan_checkpoints(problem).parts;
  EXPECT_EQ(before.mandatory_forward, 0);
  EXPECT_DOUBLE_EQ(after.mandatory_forward, 4 * 0.3);
  EXPECT_DOUBLE_EQ(after.mandatory_backward, 5 * 0.5);
  EXPECT_DOUBLE_EQ(after.objective(), before.objective());
}

}  // namespace
}  // namespace trainer
