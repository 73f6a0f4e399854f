#include "runtime/device_inputs.h"

#include "base/error.h"

namespace trainer {
namespace {

constexpr int kInputArrays = 3, kInputSteps = 2;
constexpr int64_t kInputAlignment = 64;  // bytes

int64_t array_bytes(int64_t tokens) {
  return (tokens * static_cast<int64_t>(sizeof(int32_t)) + kInputAlignment - 1) / kInputAlignment *
         kInputAlignment;
}

}  // namespace

int64_t DeviceInputs::device_bytes(int micro_batches, int64_t tokens) {
  return kInputSteps * micro_batches * kInputArrays * array_bytes(tokens);
}

DeviceInputs::DeviceInputs(StepInputs& inner, Device& device, int micro_batches, int64_t tokens)
    : inner_(inner),
      device_(device),
      micro_batches_(micro_batches),
      tokens_(tokens),
      memory_(device.allocate(static_cast<size_t>(device_bytes(micro_batches, tokens)))),
      steps_(static_cast<size_t>(kInputSteps * micro_batches)) {}

BatchView DeviceInputs::micro_batch(int64_t step, int micro_batch) {
  BatchView batch = inner_.micro_batch(step, micro_batch);
  require(batch.count() == tokens_ && micro_batch < micro_batches_,
          "micro-batch {} of {} tokens on a device laid out for {} of {}", micro_batch, batch.count(),
          micro_batches_, tokens_);
  const int64_t slot = step % kInputSteps * micro_batches_ + micro_batch, stride = array_bytes(tokens_);
  std::byte* next = memory_->bytes().data() + slot * kInputArrays * stride;
  const bool fresh = steps_[static_cast<size_t>(slot)] != step;
  batch.host_tokens = batch.tokens;
  batch.host_positions = batch.positions;
  for (const int32_t** array : {&batch.tokens, &batch.labels, &batch.positions}) {
    if (fresh) device_.compute().copy_in(next, *array, static_cast<size_t>(tokens_) * sizeof(int32_t));
    *array = reinterpret_cast<const int32_t*>(next);
    next += stride;
  }
  steps_[static_cast<size_t>(slot)] = step;
  return batch;
}

}  // namespace trainer
