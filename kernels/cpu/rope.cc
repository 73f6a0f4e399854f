#include "base/error.h"
#include "cpu/host_kernels.h"
#include "cpu/parallel.h"

namespace trainer {

void HostKernels::rope(Ref out, ConstRef in, const RopeArguments& a) {
  require(a.head_dim % 2 == 0, "rope: heads of {} elements have no two halves", a.head_dim);
  parallel_ranges(threads_, a.tokens, rows_of_a_part(a.heads * a.head_dim),
                  [&](int64_t begin, int64_t end) { vector_.rope(out, in, a, begin, end); });
}

}  // namespace trainer
