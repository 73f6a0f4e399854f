// How a thread waits for something only polling can tell it: at once while things move, gently when they do
// not.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace trainer {

// Spins, then yields, then sleeps for up to 200 µs. Call `pause` after a poll that found nothing and `reset`
// after one that found progress. A large message through shared memory moves one fragment per poll and shows
// no progress until its end, so yielding lasts long enough for some megabytes and every sleep is followed by
// a burst of polls.
class BackOff {
 public:
  void pause() {
    const auto now = Clock::now();
    if (!waiting_) {
      waiting_ = true;
      since_ = now;
    }
    const auto waited = now - since_;
    if (waited < kSpin) {
      relax();
    } else if (waited < kYield || burst_ > 0) {
      burst_ = std::max(0, burst_ - 1);
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(sleep_);
      sleep_ = std::min(2 * sleep_, kLongestSleep);
      burst_ = kBurst;
    }
  }

  void reset() {
    waiting_ = false;
    burst_ = 0;
    sleep_ = kShortestSleep;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::microseconds kSpin{10}, kYield{500}, kShortestSleep{20}, kLongestSleep{200};
  static constexpr int kBurst = 8;

  static void relax() {
#if defined(__x86_64__)
    _mm_pause();
#endif
  }

  bool waiting_ = false;
  Clock::time_point since_;
  int burst_ = 0;
  std::chrono::microseconds sleep_ = kShortestSleep;
};

}  // namespace trainer
