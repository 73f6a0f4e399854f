// Invented samples, for measurements that need no dataset.
#pragma once

#include "base/philox.h"
#include "data/sample_source.h"

namespace trainer {

// What stands in data.data_path instead of a dataset's path.
inline constexpr const char* kSyntheticData = "synthetic";

// Each token decides the next by a fixed table three times out of four, and else the next is any: a model
// learns the table, so losses fall. Samples depend on their number, the seed and the shape alone.
class SyntheticSource : public SampleSource {
 public:
  // Samples `first` ... `first + size - 1` of those that `seed` makes.
  SyntheticSource(int64_t sequence_length, int64_t vocabulary, int64_t seed, int64_t first, int64_t size);

  int64_t size() const override { return size_; }
  int64_t sequence_length() const override { return sequence_; }
  void fetch(int64_t index, Sample& sample) const override;
  int64_t valid_tokens(int64_t) const override { return sequence_; }
  uint64_t fingerprint() const override;

 private:
  int32_t token(uint64_t counter, uint64_t stream) const;

  Philox random_;
  int64_t sequence_, vocabulary_, seed_, first_, size_;
};

}  // namespace trainer
