// Static splitting of a range over OpenMP threads.
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

// Calls body(begin, end) on up to `threads` threads, each with one contiguous part of [0, count) whose
// borders are multiples of `grain`. Parts depend on `threads`; what body computes for an index must not
// depend on its part. With one part body runs on the caller.
template <class Body>
void parallel_ranges(int threads, int64_t count, int64_t grain, const Body& body) {
  const int64_t grains = (count + grain - 1) / grain;
  const int parts = static_cast<int>(std::min<int64_t>(threads, grains));
  if (parts <= 1) {
    if (count > 0) body(int64_t{0}, count);
    return;
  }
#pragma omp parallel num_threads(parts)
  {
    const int64_t team = omp_get_num_threads(), self = omp_get_thread_num();
    const int64_t begin = grains * self / team * grain;
    const int64_t end = std::min(count, grains * (self + 1) / team * grain);
    if (begin < end) body(begin, end);
  }
}

}  // namespace trainer
