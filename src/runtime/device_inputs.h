// Inputs for kernels that do not reach host memory.
#pragma once

#include <vector>

#include "device/device.h"
#include "runtime/training_binder.h"

namespace trainer {

// Copies each micro-batch to the device when it is first asked for; as in the views of `inner`, a step's
// copies last until the step after next is asked for. To be used by the thread of the device's compute lane.
class DeviceInputs final : public StepInputs {
 public:
  // `tokens`: of a micro-batch. `inner` and `device` outlive this.
  DeviceInputs(StepInputs& inner, Device& device, int micro_batches, int64_t tokens);
  static int64_t device_bytes(int micro_batches, int64_t tokens);

  BatchView micro_batch(int64_t step, int micro_batch) override;

 private:
  StepInputs& inner_;
  Device& device_;
  const int micro_batches_;
  const int64_t tokens_;
  DeviceMemoryPtr memory_;      // [step parity, micro-batch]: tokens, labels, positions
  std::vector<int64_t> steps_;  // of which each holds the inputs; 0: of none
};

}  // namespace trainer
