#include "base/on_threads.h"

#include <gtest/gtest.h>

#include <set>
#include <stdexcept>

namespace trainer {
namespace {

TEST(OnThreads, DoesEachPieceOnce) {
  for (const int64_t threads : {0, 1, 2, 5})
    for (const int64_t count : {0, 1, 7, 64, 65}) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
      pieces_on_threads(threads, count, 8, [&](int64_t begin, int64_t end) {
        EXPECT_EQ(begin % 8, 0);
        EXPECT_LE(end - begin, 8);
        for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
      });
      for (const auto& times : seen) EXPECT_EQ(times, 1);
    }
}

TEST(OnThreads, UsesSoManyThreads) {
  std::mutex mutex;
  std::set<std::thread::id> ids;
  std::atomic<int> begun = 0;
  on_threads(3, 3, [&](int64_t) {
    ++begun;
    while (begun < 3) std::this_thread::yield();  // each thread has one
    const std::lock_guard lock(mutex);
    ids.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(ids.size(), 3u);
  EXPECT_TRUE(ids.contains(std::this_thread::get_id()));
}

TEST(OnThreads, ThrowsWhatACallThrew) {
  for (const int64_t threads : {1, 4}) {
    std::atomic<int> after = 0;
    EXPECT_THROW(on_threads(threads, 1000,
                            [&](int64_t i) {
                              if (i == 3) throw std::runtime_error("no");
                              if (i > 900) ++after;
                            }),
                 std::runtime_error);
    if (threads == 1) {
      EXPECT_EQ(after, 0);
    }
  }
}

}  // namespace
}  // namespace trainer
