#include <cmath>

#include "cpu/host_kernels.h"
#include "cpu/parallel.h"

namespace trainer {

void HostKernels::adamw(const AdamW& a) {
  const double beta1 = a.beta1, beta2 = a.beta2, step = static_cast<double>(a.step);
  const AdamWFactors factors{
      .gradient_scale = a.gradient_scale,
      .beta1 = a.beta1,
      .one_minus_beta1 = static_cast<float>(1.0 - beta1),
      .beta2 = a.beta2,
      .one_minus_beta2 = static_cast<float>(1.0 - beta2),
      .step_size = static_cast<float>(a.learning_rate / (1.0 - std::pow(beta1, step))),
      .root_correction = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(beta2, step))),
      .epsilon = a.epsilon,
      .decay = static_cast<float>(1.0 - static_cast<double>(a.learning_rate) * a.weight_decay),
  };
  parallel_ranges(threads_, a.count, kElementsOfAPart,
                  [&](int64_t begin, int64_t end) { vector_.adamw(a, factors, begin, end); });
}

void HostKernels::block_squares(double* squares, const float* x, int64_t count) {
  const int64_t blocks = (count + kNormBlock - 1) / kNormBlock;
  parallel_ranges(threads_, blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const int64_t begin = block * kNormBlock;
      squares[block] = vector_.sum_of_squares(x + begin, std::min(kNormBlock, count - begin));
    }
  });
}

}  // namespace trainer
