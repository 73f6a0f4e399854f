// Linear layers. Between the parallel regions of a step libgomp's idle threads spin for some milliseconds and
// then sleep; a rank of one thread starts no others and never spins.
#include "cpu/host_kernels.h"
#include "cpu/parallel.h"

namespace trainer {

size_t HostKernels::gemm_workspace_bytes(const WorkspaceShape& shape) const {
  const int64_t widest = std::max(shape.widest_row, shape.hidden);
  return std::max(products_.bytes(shape.tokens, widest, widest),
                  products_.bytes(widest, widest, shape.tokens));
}

void HostKernels::linear_forward(Ref y, ConstRef x, ConstRef w, ConstRef bias, int64_t m, int64_t n,
                                 int64_t k) {
  products_.run({.c = y,
                 .c_stride = n,
                 .a = x,
                 .a_row = k,
                 .a_k = 1,
                 .b = w,
                 .b_column = k,
                 .b_k = 1,
                 .bias = bias,
                 .add = false,
                 .m = m,
                 .n = n,
                 .k = k},
                workspace_);
}

void HostKernels::linear_backward_input(Ref dx, ConstRef dy, ConstRef w, int64_t m, int64_t n, int64_t k,
                                        bool accumulate) {
  products_.run({.c = dx,
                 .c_stride = k,
                 .a = dy,
                 .a_row = n,
                 .a_k = 1,
                 .b = w,
                 .b_column = 1,
                 .b_k = k,
                 .bias = {},
                 .add = accumulate,
                 .m = m,
                 .n = k,
                 .k = n},
                workspace_);
}

void HostKernels::linear_backward_weight(float* dw, ConstRef dy, ConstRef x, int64_t m, int64_t n, int64_t k,
                                         bool accumulate) {
  products_.run({.c = ref(dw),
                 .c_stride = k,
                 .a = dy,
                 .a_row = 1,
                 .a_k = n,
                 .b = x,
                 .b_column = 1,
                 .b_k = k,
                 .bias = {},
                 .add = accumulate,
                 .m = n,
                 .n = k,
                 .k = m},
                workspace_);
}

void HostKernels::bias_backward(float* db, ConstRef dy, int64_t m, int64_t n) {
  // Columns are shared out; each is one sum over ascending rows.
  constexpr int64_t kColumns = 256;
  parallel_ranges(threads_, n, kColumns, [&](int64_t begin, int64_t end) {
    for (int64_t column = begin; column < end; column += kColumns) {
      const int64_t count = std::min(kColumns, end - column);
      float sums[kColumns] = {};
      for (int64_t row = 0; row < m; ++row) {
        vector_.sum(ref(sums), ref(static_cast<const float*>(sums)), dy.at(row * n + column), count);
      }
      vector_.sum(ref(db + column), ref(static_cast<const float*>(db + column)),
                  ref(static_cast<const float*>(sums)), count);
    }
  });
}

}  // namespace trainer
