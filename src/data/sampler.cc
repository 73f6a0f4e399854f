#include "data/sampler.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/error.h"

namespace trainer {

Sampler::Sampler(std::shared_ptr<const SampleSource> source, SamplerConfig config)
    : source_(std::move(source)), config_(config) {
  const SamplerConfig& c = config_;
  if (c.micro_batch_size < 1 || c.global_batch_size < 1)
    input_error("micro_batch_size {} and global_batch_size {} must be at least 1", c.micro_batch_size,
                c.global_batch_size);
  require(c.ranks >= 1 && c.rank >= 0 && c.rank < c.ranks, "data-parallel rank {} of {}", c.rank, c.ranks);
  if (c.global_batch_size / c.micro_batch_size < c.ranks ||
      c.global_batch_size % (c.micro_batch_size * c.ranks) != 0)
    input_error(
        "global_batch_size {} cannot be shared out: it must be a multiple of micro_batch_size {} times {} "
        "data-parallel ranks",
        c.global_batch_size, c.micro_batch_size, c.ranks);
  if (c.micro_batch_size > std::numeric_limits<int32_t>::max() / source_->sequence_length())
    input_error("micro_batch_size {} with sequence_length {} makes more than 2^31 - 1 tokens a micro-batch",
                c.micro_batch_size, source_->sequence_length());
}

int64_t Sampler::micro_batches() const {
  return config_.global_batch_size / (config_.micro_batch_size * config_.ranks);
}

int64_t Sampler::global_batches() const {
  const int64_t reserve = config_.pad_past_end ? config_.global_batch_size - 1 : 0;
  return (source_->size() + reserve) / config_.global_batch_size;
}

std::vector<int64_t> Sampler::sample_ids(int64_t consumed, int64_t micro_step) const {
  require(consumed >= 0 && micro_step >= 0 && micro_step < micro_batches(),
          "micro-step {} of {} after {} samples", micro_step, micro_batches(), consumed);
  std::vector<int64_t> ids(static_cast<size_t>(config_.micro_batch_size));
  std::iota(ids.begin(), ids.end(),
            consumed + (micro_step * config_.ranks + config_.rank) * config_.micro_batch_size);
  return ids;
}

void Sampler::fetch(int64_t consumed, int64_t micro_step, Batch& batch) const {
  const int64_t sequence = source_->sequence_length();
  batch.micro_batch = config_.micro_batch_size;
  batch.sequence = sequence;
  batch.sample_ids = sample_ids(consumed, micro_step);
  const auto elements = static_cast<size_t>(batch.micro_batch * sequence);
  batch.tokens.resize(elements);
  batch.labels.resize(elements);
  batch.positions.resize(elements);
  batch.segment_starts.clear();
  batch.valid_tokens = 0;

  Sample sample;
  for (int64_t row = 0; row < batch.micro_batch; ++row) {
    int64_t& id = batch.sample_ids[static_cast<size_t>(row)];
    const ptrdiff_t begin = row * sequence;
    batch.segment_starts.push_back(static_cast<int32_t>(begin));
    if (id >= source_->size()) {
      if (!config_.pad_past_end)
        input_error(
            "sample {} is wanted, but the dataset has {}: train fewer steps, or say how many samples are "
            "needed when the dataset is built",
            id, source_->size());
      id = -1;
      std::fill_n(batch.tokens.begin() + begin, sequence, 0);
      std::fill_n(batch.labels.begin() + begin, sequence, kIgnoredLabel);
      std::iota(batch.positions.begin() + begin, batch.positions.begin() + begin + sequence, 0);
      continue;
    }
    source_->fetch(id, sample);
    std::copy(sample.tokens.begin(), sample.tokens.end(), batch.tokens.begin() + begin);
    std::copy(sample.labels.begin(), sample.labels.end(), batch.labels.begin() + begin);
    std::copy(sample.positions.begin(), sample.positions.end(), batch.positions.begin() + begin);
    for (const int32_t start : sample.document_starts)
      batch.segment_starts.push_back(static_cast<int32_t>(begin) + start);
    batch.valid_tokens += sample.valid_tokens;
  }
  batch.segment_starts.push_back(static_cast<int32_t>(elements));
}

int64_t Sampler::global_valid_tokens(int64_t consumed) const {
  const int64_t end = std::min(consumed + config_.global_batch_size, source_->size());
  int64_t valid = 0;
  for (int64_t id = consumed; id < end; ++id) valid += source_->valid_tokens(id);
  return valid;
}

void Sampler::check_resume(const LoaderState& state) const {
  if (state.consumed_samples < 0)
    input_error("the checkpoint says that {} samples were consumed; it is damaged", state.consumed_samples);
  if (state.fingerprint != source_->fingerprint())
    input_error(
        "the order of samples is not the one the checkpoint was saved with (fingerprint {:016x}, now "
        "{:016x}): "
        "samples would be repeated and left out. Data, split, seed, sequence length and blend must be the "
        "same; "
        "the number of samples may change only while it needs the same number of epochs",
        state.fingerprint, source_->fingerprint());
}

}  // namespace trainer
