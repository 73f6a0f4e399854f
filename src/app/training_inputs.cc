#include "app/training_inputs.h"

namespace trainer {

SampledInputs::SampledInputs(std::shared_ptr<const SampleSource> source, const InputShape& shape)
    : global_batch_size_(shape.global_batch_size) {
  SamplerConfig config;
  config.micro_batch_size = shape.micro_batch_size;
  config.global_batch_size = shape.global_batch_size;
  config.ranks = shape.ranks;
  config.pad_past_end = shape.pad_past_end;
  for (const int rank : shape.mine) {
    config.rank = rank;
    samplers_.emplace_back(source, config);
  }
}

BatchView SampledInputs::micro_batch(int64_t step, int micro_batch) {
  const auto per_virtual_rank = static_cast<int>(samplers_.front().micro_batches());
  Step& cached = steps_[static_cast<size_t>(step % 2)];
  if (cached.step != step) {
    cached.step = step;
    cached.batches.resize(samplers_.size() * static_cast<size_t>(per_virtual_rank));
    for (Batch& batch : cached.batches) batch.sequence = 0;
  }
  Batch& batch = cached.batches[static_cast<size_t>(micro_batch)];
  if (batch.sequence == 0)
    samplers_[static_cast<size_t>(micro_batch / per_virtual_rank)].fetch(
        first_sample_ + (step - 1) * global_batch_size_, micro_batch % per_virtual_rank, batch);
  return {batch.micro_batch,      batch.sequence,
          batch.tokens.data(),    batch.labels.data(),
          batch.positions.data(), {batch.segment_starts.data(), batch.segment_starts.size() - 1}};
}

}  // namespace trainer
