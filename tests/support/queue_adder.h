// Sums in the queue of a guarded device.
#pragma once

#include "comm/collectives.h"
#include "support/guarded_device.h"

namespace trainer::testing {

// Additions that are under way when `add` returns.
class QueueAdder final : public FloatAdder {
 public:
  explicit QueueAdder(GuardedDevice& device) : device_(device) {}
  void add(float* sum, const float* term, size_t count) const override {
    device_.put(device_.transfers(), [=] {
      for (size_t i = 0; i < count; ++i) sum[i] += term[i];
    });
  }
  void finish() const override { device_.transfers().synchronise(); }

 private:
  GuardedDevice& device_;
};

}  // namespace trainer::testing
