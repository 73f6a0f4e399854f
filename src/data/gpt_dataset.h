// Samples of a language model: sequences of an indexed dataset laid end to end and cut every
// `sequence_length` tokens, in Megatron-LM's order or in the order of the file.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "data/gpt_index.h"
#include "data/indexed_dataset.h"
#include "data/sample_source.h"

namespace trainer {

struct GptDatasetConfig {
  enum class Order {
    kShuffled,  // Megatron-LM's
    // One epoch in the order of the file, the last partial sample included: each token after the first is the
    // target of exactly one sample. For evaluation; `seed`, `num_samples` and `drop_last` mean nothing here.
    kSequential,
  };
  int64_t sequence_length = 0;
  uint32_t seed = 1234;
  Order order = Order::kShuffled;
  // Samples that will be asked for; decides how many epochs are laid out. Absent: one epoch.
  std::optional<int64_t> num_samples;
  bool drop_last = true;  // leave a partial sample at the end out
  // Read one token more than there are inputs, so that the last input has its label. Without it that label is
  // ignored, and samples do not share a token.
  bool extra_token = true;
  SampleOptions samples;
  std::string split = "train";  // for messages
};

// Numbers that fit 32 bits as a rule; 64 where they might not.
template <class Narrow>
struct IndexArray {
  std::vector<Narrow> narrow;
  std::vector<int64_t> wide;  // used instead when not empty
  bool is_wide() const { return !wide.empty(); }
  int64_t size() const { return static_cast<int64_t>(is_wide() ? wide.size() : narrow.size()); }
  int64_t operator[](int64_t i) const {
    return is_wide() ? wide[static_cast<size_t>(i)] : static_cast<int64_t>(narrow[static_cast<size_t>(i)]);
  }
};

class GptDataset : public SampleSource {
 public:
  // Builds the order in memory: time and space linear in sequences x epochs and in samples, the same on every
  // rank. Throws InputError when `range` holds less than one sample.
  GptDataset(std::shared_ptr<const IndexedDataset> dataset, SequenceRange range, GptDatasetConfig config);

  int64_t size() const override { return count_; }
  int64_t sequence_length() const override { return config_.sequence_length; }
  void fetch(int64_t index, Sample& sample) const override;
  int64_t valid_tokens(int64_t index) const override;
  uint64_t fingerprint() const override;

  // The tokens a sample is made of, [sequence_length + 1] or without extra token [sequence_length]; -1 is
  // padding.
  std::vector<int32_t> text(int64_t index) const;

  const EpochPlan& epochs() const { return plan_; }
  const std::vector<int32_t>& document_index() const { return document_index_; }
  const IndexArray<int32_t>& sample_index() const { return sample_index_; }  // [size + 1, 2]
  const IndexArray<uint32_t>& shuffle_index() const {
    return shuffle_index_;
  }  // [size]; empty when sequential

 private:
  int64_t extra() const { return config_.extra_token ? 1 : 0; }
  // Fills `text`; the number of tokens that are not padding comes back. Where another sequence begins, its
  // place is added to `joins`.
  int64_t gather(int64_t index, std::span<int32_t> text, std::vector<int32_t>& joins) const;

  std::shared_ptr<const IndexedDataset> dataset_;
  SequenceRange range_;
  GptDatasetConfig config_;
  int64_t tokens_ = 0;  // of one epoch
  EpochPlan plan_;
  int64_t count_ = 0,
          complete_ = 0;  // samples; those of them that surely need no padding come first, unshuffled
  std::vector<int32_t> document_index_;
  IndexArray<int32_t> sample_index_;
  IndexArray<uint32_t> shuffle_index_;
};

}  // namespace trainer
