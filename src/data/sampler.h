// Which samples a rank reads in which micro-step, and the arrays a model takes.
//
// The global batch that begins after `consumed` samples is [consumed, consumed + global batch size) whatever
// the number of ranks. In it, micro-step m of data-parallel rank r (of D, micro-batch size b) reads b samples
// from consumed + m*b*D + r*b on. `consumed` is all there is to the state of loading.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "data/sample_source.h"

namespace trainer {

struct Batch {
  int64_t micro_batch = 0, sequence = 0;
  std::vector<int32_t> tokens;     // [micro_batch, sequence]
  std::vector<int32_t> labels;     // [micro_batch, sequence], kIgnoredLabel where nothing is to be predicted
  std::vector<int32_t> positions;  // [micro_batch, sequence]
  // Where each segment begins in the flattened [micro_batch * sequence], and the end; attention stays inside
  // segments. Rows are segments; with document masking, documents within rows are.
  std::vector<int32_t> segment_starts;  // [segments + 1]
  std::vector<int64_t>
      sample_ids;            // [micro_batch], place in the stream of samples; -1: a row of padding only
  int64_t valid_tokens = 0;  // labels that count
};

// What a checkpoint keeps.
struct LoaderState {
  int64_t consumed_samples = 0;
  uint64_t fingerprint = 0;
};

struct SamplerConfig {
  int64_t micro_batch_size = 1;
  int64_t global_batch_size = 1;
  // Data parallel. Ranks that share a global batch without being processes (virtual ranks) are ranks here as
  // well.
  int64_t rank = 0;
  int64_t ranks = 1;
  bool pad_past_end = false;  // rows past the last sample are padding (evaluation) instead of an error
};

// Immutable; every method may be called from several threads at once.
class Sampler {
 public:
  // Throws InputError when the global batch cannot be shared out evenly.
  Sampler(std::shared_ptr<const SampleSource> source, SamplerConfig config);

  // Micro-steps of each rank in a global batch.
  int64_t micro_batches() const;
  // Global batches in the source; with `pad_past_end` the last may be partly padding.
  int64_t global_batches() const;

  // Places in the stream of samples, [micro_batch]; not checked against the end.
  std::vector<int64_t> sample_ids(int64_t consumed, int64_t micro_step) const;
  // Overwrites `batch`, reusing its storage. Throws InputError past the last sample and for damaged tokens.
  void fetch(int64_t consumed, int64_t micro_step, Batch& batch) const;
  // Labels that count in the global batch of all ranks. Every rank computes the same without asking another;
  // the tokens are read only if the sample options make it depend on them.
  int64_t global_valid_tokens(int64_t consumed) const;

  LoaderState state(int64_t consumed) const { return {consumed, source_->fingerprint()}; }
  // Throws InputError when a run that was saved with `state` would go on with samples of another order.
  void check_resume(const LoaderState& state) const;

 private:
  std::shared_ptr<const SampleSource> source_;
  SamplerConfig config_;
};

}  // namespace trainer
