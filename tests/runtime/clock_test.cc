#include "runtime/clock.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "comm/in_process.h"

namespace trainer {
namespace {

using namespace std::chrono_literals;

TEST(Clock, RanksAgreeOnTheTimeOfRank0) {
  std::vector<Clock> clocks;
  for (int r = 0; r < 3; ++r) {
    clocks.emplace_back();
    std::this_thread::sleep_for(100ms);
  }
  ASSERT_GT(clocks[0].now() - clocks[2].now(), 0.19);
  auto world = make_in_process_group(3, {Delivery::kEager, {1, 200us}});
  std::vector<std::jthread> threads;
  for (size_t r = 0; r < 3; ++r) threads.emplace_back([&, r] { clocks[r].synchronise(*world[r]); });
  threads.clear();
  // A round trip takes well under this, and the error is at most half of the fastest.
  EXPECT_NEAR(clocks[1].now(), clocks[0].now(), 0.03);
  EXPECT_NEAR(clocks[2].now(), clocks[0].now(), 0.03);
}

TEST(Clock, NeverRunsBackwards) {
  const Clock clock;
  double last = clock.now();
  for (int i = 0; i < 1000; ++i) {
    const double now = clock.now();
    EXPECT_GE(now, last);
    last = now;
  }
}

}  // namespace
}  // namespace trainer
