// A range shared out between OpenMP threads.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace trainer {

// The least work worth waking a thread for, in elements; a multiple of what a cache line holds.
constexpr int64_t kElementsOfAPart = 1 << 13;
constexpr int64_t rows_of_a_part(int64_t columns) {
  return std::max<int64_t>(1, kElementsOfAPart / std::max<int64_t>(1, columns));
}

// Into how many parts the work of a thread is cut: cores need not be equally fast, and whichever is free
// takes the next.
constexpr int64_t kPartsOfAThread = 8;

// Calls body(begin, end) on up to `threads` threads with contiguous parts of [0, count) whose borders are
// multiples of `grain`. What body computes for an index must not depend on its part. Where one thread takes
// it all, that is the caller.
template <class Body>
void parallel_ranges(int threads, int64_t count, int64_t grain, const Body& body) {
  const int64_t grains = (count + grain - 1) / grain;
  const int team = static_cast<int>(std::min<int64_t>(threads, grains));
  if (team <= 1) {
    if (count > 0) body(int64_t{0}, count);
    return;
  }
  const int64_t parts = std::min<int64_t>(grains, team * kPartsOfAThread);
#pragma omp parallel for schedule(dynamic) num_threads(team)
  for (int64_t part = 0; part < parts; ++part)
    body(grains * part / parts * grain, std::min(count, grains * (part + 1) / parts * grain));
}

}  // namespace trainer
