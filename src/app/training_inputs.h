// Micro-batches of a rank, step by step, from samplers.
#pragma once

#include <array>
#include <vector>

#include "data/sampler.h"
#include "runtime/training_binder.h"

namespace trainer {

struct InputShape {
  int64_t micro_batch_size = 1, global_batch_size = 1;
  int ranks = 1;                // that share the global batch: replicas, or their virtual ranks
  std::vector<int> mine = {0};  // of these, run one after the other
  bool pad_past_end = false;    // evaluation
};

// Step t (from 1) reads the samples after `first_sample + (t - 1) * global_batch_size`.
class SampledInputs : public StepInputs {
 public:
  SampledInputs(std::shared_ptr<const SampleSource> source, const InputShape& shape);

  void set_first_sample(int64_t sample) { first_sample_ = sample; }
  BatchView micro_batch(int64_t step, int micro_batch) override;

 private:
  struct Step {
    int64_t step = 0;
    std::vector<Batch> batches;  // by micro-batch; empty: not fetched
  };
  std::vector<Sampler> samplers_;  // by virtual rank
  int64_t global_batch_size_, first_sample_ = 0;
  std::array<Step, 2> steps_;
};

}  // namespace trainer
