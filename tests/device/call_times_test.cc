#include "device/call_times.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "support/guarded_device.h"

namespace trainer {
namespace {

using ::testing::EndsWith;
using ::testing::StartsWith;

// Remembers calls and waits in their order.
class NotingQueue final : public DeviceQueue {
 public:
  explicit NotingQueue(bool host_reaches) : host_reaches_(host_reaches) {}
  bool host_reaches() const override { return host_reaches_; }
  void copy_in(void*, const void*, size_t) override {}
  void copy_out(void*, const void*, size_t) override {}
  void copy(void*, const void*, size_t) override {}
  DeviceEventPtr record() override { return nullptr; }
  void synchronise() override { seen += "."; }

  std::string seen;

 private:
  bool host_reaches_;
};

TEST(CallTimes, OnTheHostEachCallIsTimedByItself) {
  NotingQueue queue(true);
  std::vector<double> times;
  time_calls(
      queue, [&] { queue.seen += "c"; }, 0, 4, times);
  EXPECT_EQ(queue.seen, "c.c.c.c.c.") << "the first is not counted";
  EXPECT_EQ(times.size(), 4);
}

TEST(CallTimes, OnADeviceCallsAreTimedTogether) {
  NotingQueue queue(false);
  std::vector<double> times;
  time_calls(
      queue, [&] { queue.seen += "c"; }, 1e-3, 2, times);
  EXPECT_THAT(queue.seen, StartsWith("c.c.cc")) << "one is not counted, one says how many are timed together";
  EXPECT_THAT(queue.seen, EndsWith("c."));
  EXPECT_GE(times.size(), 2);
  for (const double seconds : times) EXPECT_LT(seconds, 1e-3) << "of one call";
}

TEST(CallTimes, LongCallsAreNotRepeatedMoreThanTheyMust) {
  NotingQueue queue(false);
  std::vector<double> times = {0.2};
  time_calls(
      queue, [&] { queue.seen += "c"; }, 0, 1, times);
  EXPECT_EQ(queue.seen, "c.");
  EXPECT_EQ(times.size(), 2);
}

// The work of a guarded device is done in `synchronise`.
TEST(CallTimes, CountTheWorkOfAQueueThatWorksLate) {
  testing::GuardedDevice device;
  std::vector<double> times;
  time_calls(
      device.compute(),
      [&] {
        device.put(device.compute(), [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); });
      },
      0, 2, times);
  for (const double seconds : times) EXPECT_GE(seconds, 2e-3);
}

}  // namespace
}  // namespace trainer
