// From the `data` section of a config to the sources that training and evaluation read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/blended_dataset.h"
#include "data/gpt_dataset.h"

namespace trainer {

struct DataConfig {
  struct Source {
    std::string prefix;            // of the .bin and .idx
    std::optional<double> weight;  // for all sources or for none
  };
  std::vector<Source> sources;
  std::string split = "969,30,1";
  int64_t sequence_length = 0;
  int64_t seed = 1234;
  SampleOptions samples;
};

class DatasetBuilder {
 public:
  // Opens and checks every source. Throws InputError.
  explicit DatasetBuilder(DataConfig config);

  // The training split, shuffled; at least `num_samples` samples. One source goes through as many epochs as
  // that takes, and so does each of several with weights. Several without weights are mixed in proportion to
  // their lengths and gone through once. Throws InputError when there is too little data.
  std::shared_ptr<const SampleSource> train(int64_t num_samples) const;

  // A split in the order of its files, each token the target of one sample (but the first of each source,
  // which nothing predicts). Sources whose split is empty are left out; InputError when all are.
  std::shared_ptr<const SampleSource> evaluation(Split split) const;

  const std::vector<std::shared_ptr<const IndexedDataset>>& datasets() const { return datasets_; }
  // Tokens of a split over all sources.
  int64_t tokens(Split split) const;

 private:
  SequenceRange range(size_t source, Split split) const;
  std::shared_ptr<const SampleSource> shuffled(size_t source, std::optional<int64_t> num_samples) const;

  DataConfig config_;
  SplitMatrix split_;
  std::vector<std::shared_ptr<const IndexedDataset>> datasets_;
};

}  // namespace trainer
