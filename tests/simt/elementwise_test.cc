// Launchers whose operands may differ in type, which KernelSet's do not.
#include <gtest/gtest.h>

#include "cuda/kernels.h"
#include "ops/array.h"
#include "simt/machine.h"

namespace trainer::simt {
namespace {

TEST(Add, TakesBf16ToFp32) {
  Machine machine(SimtOptions{});
  for (const int64_t count : {1, 7, 8, 1003}) {
    Array sum(DType::kF32, count, 1);
    const Array before(sum), term(DType::kBF16, count, 2);
    add(sum.ref(), term.ref(), count, &machine);
    for (int64_t i = 0; i < count; ++i)
      ASSERT_EQ(static_cast<float>(sum.at(i)),
                static_cast<float>(before.at(i)) + static_cast<float>(term.at(i)))
          << i << " of " << count;
  }
}

}  // namespace
}  // namespace trainer::simt
