#include <cstring>

#include "cpu/host_kernels.h"
#include "cpu/parallel.h"

namespace trainer {

void HostKernels::fill_zero(void* data, size_t bytes) {
  constexpr int64_t kGrain = kElementsOfAPart * static_cast<int64_t>(sizeof(float));
  parallel_ranges(threads_, static_cast<int64_t>(bytes), kGrain, [&](int64_t begin, int64_t end) {
    std::memset(static_cast<std::byte*>(data) + begin, 0, static_cast<size_t>(end - begin));
  });
}

void HostKernels::convert(Ref to, ConstRef from, int64_t count) {
  parallel_ranges(threads_, count, kElementsOfAPart, [&](int64_t begin, int64_t end) {
    vector_.convert(to.at(begin), from.at(begin), end - begin);
  });
}

void HostKernels::convert_rows(Ref to, int64_t to_stride, ConstRef from, int64_t from_stride, int64_t rows,
                               int64_t columns) {
  parallel_ranges(threads_, rows, rows_of_a_part(columns), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      vector_.convert(to.at(r * to_stride), from.at(r * from_stride), columns);
  });
}

void HostKernels::add(Ref y, ConstRef x, int64_t count) {
  parallel_ranges(threads_, count, kElementsOfAPart, [&](int64_t begin, int64_t end) {
    vector_.sum(y.at(begin), y.at(begin), x.at(begin), end - begin);
  });
}

}  // namespace trainer
