// How much work the kernels of a KernelSet are given, and how long they take.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "ops/kernel_set.h"

namespace trainer {

enum class Kernel : uint8_t {
  kLinearForward,
  kLinearBackwardInput,
  kLinearBackwardWeight,
  kBiasBackward,
  kEmbeddingForward,
  kEmbeddingBackward,
  kNormForward,
  kNormBackward,
  kRopeForward,
  kRopeBackward,
  kActivationForward,
  kActivationBackward,
  kAttentionForward,
  kAttentionBackward,
  kClassifier,
  kAdamW,
  kBlockSquares,
  kFillZero,
  kConvert,
  kAdd,
};
inline constexpr size_t kKernelKinds = static_cast<size_t>(Kernel::kAdd) + 1;

// "linear_forward".
const char* name_of(Kernel kernel);
// Whether its time is that of matrix products; that of all others goes into moving bytes.
bool multiplies(Kernel kernel);

// FLOPs: of matrix products only, 2 m n k each. Attention has two products forward and four backward, of the
// pairs of a query and a key that it sees, the last of them by half: an n x n causal mask counts n * n / 2.
// The classifier has three, forward only one.
// Bytes: every operand read once, every result written once; one that is added to is read too. A gathered
// row, and the row of its table, count once a token.
struct KernelWork {
  double flops = 0, bytes = 0;
};

struct KernelSum {
  int64_t calls = 0;
  double seconds = 0;
  KernelWork work = {};
};

// What the calls of one KernelSet add up to while `on`. Used by one thread at a time.
class KernelRecord {
 public:
  bool on = false;
  const KernelSum& operator[](Kernel kernel) const { return sums_[static_cast<size_t>(kernel)]; }
  void add(Kernel kernel, const KernelSum& more);
  KernelRecord& operator+=(const KernelRecord& other);

 private:
  std::array<KernelSum, kKernelKinds> sums_ = {};
};

// What the products of a step and the bytes of everything else need when nothing is computed twice: forward
// work counts as often as the backward work that goes with it. Memory is not cleared: what adds first could
// write, as gradients of matrices do.
KernelWork necessary_work(const KernelRecord& record);

// Kernels that do what `inner` does. `record` outlives them. Seconds are those until a call returns.
std::unique_ptr<KernelSet> make_metered_kernels(std::unique_ptr<KernelSet> inner, KernelRecord& record);

}  // namespace trainer
