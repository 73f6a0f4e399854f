// Sums of collectives by the kernels of a device.
#pragma once

#include "comm/collectives.h"
#include "device/device.h"
#include "ops/kernel_set.h"

namespace trainer {

// `kernels` are those of `queue`; both outlive it.
class KernelAdder final : public FloatAdder {
 public:
  KernelAdder(KernelSet& kernels, DeviceQueue& queue) : kernels_(kernels), queue_(queue) {}
  void add(float* sum, const float* term, size_t count) const override {
    kernels_.add(ref(sum), ref(term), static_cast<int64_t>(count));
  }
  void finish() const override { queue_.synchronise(); }

 private:
  KernelSet& kernels_;
  DeviceQueue& queue_;
};

}  // namespace trainer
