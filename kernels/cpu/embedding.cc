#include <cstring>

#include "cpu/host_kernels.h"
#include "cpu/parallel.h"

namespace trainer {

void HostKernels::embedding_forward(Ref y, const int32_t* tokens, ConstRef table, const int32_t* positions,
                                    ConstRef position_table, int64_t count, int64_t hidden) {
  parallel_ranges(threads_, count, rows_of_a_part(hidden), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const Ref row = y.at(t * hidden);
      if (tokens[t] < 0) {
        if (position_table)
          vector_.convert(row, position_table.at(positions[t] * hidden), hidden);
        else
          std::memset(row.data, 0, static_cast<size_t>(hidden) * size_of(row.dtype));
      } else if (position_table) {
        vector_.sum(row, table.at(tokens[t] * hidden), position_table.at(positions[t] * hidden), hidden);
      } else {
        vector_.convert(row, table.at(tokens[t] * hidden), hidden);
      }
    }
  });
}

// Each thread owns columns and walks all tokens in order, so a token that occurs twice needs no ordering of
// threads.
void HostKernels::embedding_backward(float* dtable, const int32_t* tokens, float* dposition,
                                     const int32_t* positions, ConstRef dy, int64_t count, int64_t hidden) {
  constexpr int64_t kCacheLine = 64 / sizeof(float);
  const int64_t grain = (rows_of_a_part(count) + kCacheLine - 1) / kCacheLine * kCacheLine;
  parallel_ranges(threads_, hidden, grain, [&](int64_t begin, int64_t end) {
    const auto add_row = [&](float* row, int64_t t) {
      vector_.sum(ref(row + begin), ref(row + begin), dy.at(t * hidden + begin), end - begin);
    };
    for (int64_t t = 0; t < count; ++t) {
      if (tokens[t] >= 0) add_row(dtable + tokens[t] * hidden, t);
      if (dposition) add_row(dposition + positions[t] * hidden, t);
    }
  });
}

}  // namespace trainer
