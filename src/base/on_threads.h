// Work of a moment, spread over threads that live as long as it takes.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace trainer {

// Calls body(i) once for each i of [0, count) on up to `threads` threads, the caller's among them; smaller i
// begin first. What one call throws is thrown when all threads have ended; calls not begun are left out.
template <class Body>
void on_threads(int64_t threads, int64_t count, const Body& body) {
  std::atomic<int64_t> next = 0;
  std::mutex mutex;
  std::exception_ptr thrown;
  const auto work = [&] {
    try {
      for (int64_t i = next++; i < count; i = next++) body(i);
    } catch (...) {
      next = count;
      const std::lock_guard lock(mutex);
      if (!thrown) thrown = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;
    for (int64_t t = 1; t < std::min(threads, count); ++t) others.emplace_back(work);
    work();
  }
  if (thrown) std::rethrow_exception(thrown);
}

// The same for [0, count) in pieces: body(begin, end).
template <class Body>
void pieces_on_threads(int64_t threads, int64_t count, int64_t piece, const Body& body) {
  on_threads(threads, (count + piece - 1) / piece,
             [&](int64_t i) { body(i * piece, std::min(count, (i + 1) * piece)); });
}

}  // namespace trainer
