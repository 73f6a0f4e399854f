#include "app/start_times.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace trainer {
namespace {

TEST(StartTimes, CountsFromTheStartOfTheProcess) {
  const double before = seconds_of_process();
  EXPECT_GE(before, 0);
  EXPECT_LT(before, 3600);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const double after = seconds_of_process();
  EXPECT_GE(after - before, 0.049);
  EXPECT_LT(after - before, 30);
}

TEST(StartTimes, PartsAddUp) {
  const double before = seconds_of_process();
  StartTimes times("program");
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  times.part("weights");
  EXPECT_GE(times.seconds(), before + 0.02);
  EXPECT_LE(times.seconds(), seconds_of_process() + 0.001);
  EXPECT_THAT(times.describe(),
              ::testing::MatchesRegex("ready after [0-9]+\\.[0-9][0-9] s: program [0-9]+\\.[0-9][0-9], "
                                      "weights [0-9]+\\.[0-9][0-9]"));
}

}  // namespace
}  // namespace trainer
