// Several datasets as one.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "data/sample_source.h"

namespace trainer {

// For each sample of a blend: the dataset it comes from, and its index there.
struct BlendIndex {
  std::vector<int16_t> dataset;
  std::vector<int64_t> sample;
  int64_t size() const { return static_cast<int64_t>(dataset.size()); }
};

// Weights scaled to a sum of 1. Throws InputError unless all are finite and above 0.
std::vector<double> normalize_weights(std::span<const double> weights);

// Greedy: each sample comes from the dataset that is furthest behind its weight, the first of them in a tie.
// The beginning does not depend on `size`. Weights are normalized; at most 32767 datasets (InputError).
BlendIndex build_blend_index(std::span<const double> weights, int64_t size);
// The same with weights in proportion to `sizes`, until every dataset is used up.
BlendIndex build_exhaustive_blend_index(std::span<const int64_t> sizes);

// What a blend of `size` samples needs: from each dataset (half a per cent in reserve, as the greedy rule
// strays), and in all (each share rounded up).
struct BlendSizes {
  std::vector<int64_t> datasets;
  int64_t total = 0;
};
BlendSizes blend_sizes(std::span<const double> weights, int64_t size);

// Sources of one sequence length, mixed.
class BlendedDataset : public SampleSource {
 public:
  using Sources = std::vector<std::shared_ptr<const SampleSource>>;

  // `size` samples by weight. Throws InputError when a source has too few for that.
  BlendedDataset(Sources sources, std::span<const double> weights, int64_t size);
  // Every sample of every source once.
  explicit BlendedDataset(Sources sources);

  int64_t size() const override { return index_.size(); }
  int64_t sequence_length() const override { return sources_[0]->sequence_length(); }
  void fetch(int64_t index, Sample& sample) const override;
  int64_t valid_tokens(int64_t index) const override;
  uint64_t fingerprint() const override { return fingerprint_; }

  const BlendIndex& index() const { return index_; }

 private:
  std::pair<const SampleSource*, int64_t> locate(int64_t index) const;

  Sources sources_;
  BlendIndex index_;
  uint64_t fingerprint_ = 0;
};

// Sources of one sequence length, one after the other.
class ConcatenatedDataset : public SampleSource {
 public:
  explicit ConcatenatedDataset(std::vector<std::shared_ptr<const SampleSource>> sources);

  int64_t size() const override { return ends_.back(); }
  int64_t sequence_length() const override { return sources_[0]->sequence_length(); }
  void fetch(int64_t index, Sample& sample) const override;
  int64_t valid_tokens(int64_t index) const override;
  uint64_t fingerprint() const override;

 private:
  std::pair<const SampleSource*, int64_t> locate(int64_t index) const;

  std::vector<std::shared_ptr<const SampleSource>> sources_;
  std::vector<int64_t> ends_;  // samples up to the end of each source
};

}  // namespace trainer
