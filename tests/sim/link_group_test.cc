#include "sim/link_group.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "graphs.h"
#include "sim/simulator.h"

namespace trainer {
namespace {

// Transfers on lanes of one link group: each begins after its own seconds, then moves its bytes.
CostTable transfers(std::vector<double> seconds, std::vector<double> bytes, std::vector<double> rate,
                    double group_rate) {
  CostTable costs;
  costs.link_group.assign(seconds.size(), 0);
  costs.seconds = std::move(seconds);
  costs.bytes = std::move(bytes);
  costs.rate = std::move(rate);
  costs.group_rate = {group_rate};
  return costs;
}

std::vector<double> ends(const CostTable& costs) {
  const StepGraph graph = testing::independent_tasks(static_cast<int>(costs.seconds.size()));
  std::vector<double> end(costs.seconds.size());
  for (const TaskRun& run : simulate(graph, costs).runs)
    end[static_cast<size_t>(run.instance.task)] = run.end;
  return end;
}

TEST(FairRates, WhatOneCannotUseGoesToTheOthers) {
  EXPECT_EQ(fair_rates({{1}, {10}, {10}}, 9), (std::vector<double>{1, 4, 4}));
  EXPECT_EQ(fair_rates({{1}, {2}, {3}}, 100), (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(fair_rates({{5}, {5}}, 6), (std::vector<double>{3, 3}));
}

TEST(FairRates, FollowWeights) {
  EXPECT_EQ(fair_rates({{10, 3}, {10, 1}}, 8), (std::vector<double>{6, 2}));
  // The first leaves what it cannot use of its three quarters.
  EXPECT_EQ(fair_rates({{4, 3}, {10, 1}}, 8), (std::vector<double>{4, 4}));
}

TEST(LinkGroup, AWeakLaneWaitsForTheOthers) {
  CostTable costs = transfers({0, 0}, {30, 10}, {10, 10}, 10);
  costs.lane_weight = {3, 1};
  // 7.5 and 2.5 a second: both end together.
  const auto end = ends(costs);
  EXPECT_DOUBLE_EQ(end[0], 4);
  EXPECT_DOUBLE_EQ(end[1], 4);
}

TEST(LinkGroup, TwoTransfersShareWhileBothAreUnderWay) {
  // 0-2 s: the first alone at 10, 20 bytes gone; then 5 each: 40 bytes take 8 s; then the second alone, 20
  // bytes left.
  const auto end = ends(transfers({0, 2}, {60, 60}, {10, 10}, 10));
  EXPECT_DOUBLE_EQ(end[0], 10);
  EXPECT_DOUBLE_EQ(end[1], 12);
}

TEST(LinkGroup, ASlowLaneLeavesItsShareToTheOthers) {
  // Of 12: the first can take 2, the others 5 each. The second ends at 4 (20 bytes), then the third has 10.
  const auto end = ends(transfers({0, 0, 0}, {20, 20, 60}, {2, 12, 12}, 12));
  EXPECT_DOUBLE_EQ(end[0], 10);
  EXPECT_DOUBLE_EQ(end[1], 4);
  EXPECT_DOUBLE_EQ(end[2], 8);
}

TEST(LinkGroup, WithoutAGroupNobodySlowsAnother) {
  CostTable costs = transfers({1, 2}, {60, 60}, {10, 20}, 10);
  costs.link_group = {kNone, kNone};
  const auto end = ends(costs);
  EXPECT_DOUBLE_EQ(end[0], 7);
  EXPECT_DOUBLE_EQ(end[1], 5);
}

// Time in small equal steps, rates found by raising all of them together until a limit or the group is full.
std::vector<double> integrate(const CostTable& costs, double dt) {
  const size_t count = costs.seconds.size();
  std::vector<double> left = costs.bytes, end(count, 0);
  size_t open = count;
  for (double t = 0; open > 0; t += dt) {
    std::vector<size_t> active;
    for (size_t i = 0; i < count; ++i)
      if (end[i] == 0 && costs.seconds[i] <= t + dt / 2) active.push_back(i);
    std::vector<double> rate(count, 0);
    double capacity = costs.group_rate[0];
    std::vector<size_t> rising = active;
    while (!rising.empty() && capacity > 1e-9) {
      double step = capacity / static_cast<double>(rising.size());
      for (size_t i : rising) step = std::min(step, costs.rate[i] - rate[i]);
      for (size_t i : rising) rate[i] += step;
      capacity -= step * static_cast<double>(rising.size());
      std::erase_if(rising, [&](size_t i) { return costs.rate[i] - rate[i] < 1e-9; });
    }
    for (size_t i : active) {
      left[i] -= rate[i] * dt;
      if (left[i] <= 0) {
        end[i] = t + dt;
        --open;
      }
    }
  }
  return end;
}

TEST(LinkGroup, AgreesWithIntegrationInSmallSteps) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (int instance = 0; instance < 40; ++instance) {
    const size_t count = 2 + random() % 5;
    std::vector<double> seconds, bytes, rate;
    for (size_t i = 0; i < count; ++i) {
      seconds.push_back(uniform(random));
      bytes.push_back(0.2 + uniform(random));
      rate.push_back(0.3 + uniform(random));
    }
    const CostTable costs = transfers(seconds, bytes, rate, 0.5 + uniform(random));
    const double dt = 1e-4;
    const auto exact = ends(costs), stepped = integrate(costs, dt);
    // Each transfer that ends late by a step delays the others by as much at most.
    for (size_t i = 0; i < count; ++i)
      EXPECT_NEAR(exact[i], stepped[i], 4 * dt * static_cast<double>(count)) << instance << " " << i;
  }
}

}  // namespace
}  // namespace trainer
