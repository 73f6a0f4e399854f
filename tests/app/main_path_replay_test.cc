#include "app/main_path_replay.h"

#include <gtest/gtest.h>

#include <cmath>

#include "schedule/problems.h"

namespace trainer {
namespace {

// Two layers a stage; a slot's seconds are split over them.
WaitLedger::StepAccount account(const std::vector<double>& slots, std::vector<double> forward,
                                std::vector<double> backward) {
  WaitLedger::StepAccount a;
  for (double seconds : slots) {
    a.compute.push_back(0.25 * seconds);
    a.compute.push_back(0.75 * seconds);
  }
  a.received_forward = std::move(forward);
  a.received_backward = std::move(backward);
  return a;
}

TEST(MainPathReplay, IsTheOneThatOneWorksOutByHand) {
  const MainPathReplay replay(testing::small_problem(2, 2, 1, 2));
  // Stage 0: F0 F1 B0 B1 of 1, 1, 2, 2; stage 1: F0 B0 F1 B1 of 1.5, 3, 1.5, 3; transfers of 0.25.
  // Stage 1 works from 1.25 to 10.25 without a gap; B1 of stage 0 runs from 10.5 to 12.5.
  const auto first = account({1, 1, 2, 2}, {}, {0.25, 0.25});
  const auto second = account({1.5, 3, 1.5, 3}, {0.25, 0.25}, {});
  EXPECT_DOUBLE_EQ(replay.seconds({first, second}), 12.5);
  // A slow second message of 5 arrives at 7 and keeps stage 1 from 5.75 on.
  EXPECT_DOUBLE_EQ(replay.seconds({first, account({1.5, 3, 1.5, 3}, {0.25, 5}, {})}), 13.75);
  // A fast stage 1 waits for stage 0: F1 of stage 1 ends at 2.75, its B1 at 3.25; B0 of stage 0 runs
  // from 2.25 to 4.25, B1 until 6.25.
  EXPECT_DOUBLE_EQ(replay.seconds({first, account({0.5, 0.25, 0.5, 0.5}, {0.25, 0.25}, {})}), 6.25);
}

TEST(MainPathReplay, OneStageIsTheSumOfItsTasks) {
  const MainPathReplay replay(testing::small_problem(1, 1, 1, 3));
  WaitLedger::StepAccount a;
  double sum = 0;
  for (int i = 0; i < 3 * 3 * 2; ++i) {
    a.compute.push_back(0.125 * (i + 1));
    sum += a.compute.back();
  }
  EXPECT_DOUBLE_EQ(replay.seconds({a}), sum);
}

// As of the first step after a start in the middle of one.
TEST(MainPathReplay, WhatWasNotMeasuredHasNoTime) {
  const MainPathReplay replay(testing::small_problem(2, 2, 1, 2));
  const auto first = account({1, 1, 2, 2}, {}, {0.25, 0.25});
  EXPECT_TRUE(std::isnan(replay.seconds({first, account({1.5, 3, 1.5}, {0.25, 0.25}, {})})));
  EXPECT_TRUE(std::isnan(replay.seconds({first, account({1.5, 3, 1.5, 3}, {0.25}, {})})));
}

}  // namespace
}  // namespace trainer
