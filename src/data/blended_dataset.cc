#include "data/blended_dataset.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string_view>

#include "base/error.h"
#include "base/hash.h"

namespace trainer {
namespace {

void check_datasets(size_t count) {
  if (count == 0 || count > static_cast<size_t>(std::numeric_limits<int16_t>::max()))
    input_error("a blend needs 1 to 32767 datasets, not {}", count);
}

void check_sources(const std::vector<std::shared_ptr<const SampleSource>>& sources) {
  require(!sources.empty(), "several datasets as one, but none was given");
  for (const auto& source : sources)
    require(source->sequence_length() == sources[0]->sequence_length(),
            "datasets of different sequence lengths");
}

// How far a dataset is behind its share before sample k. Kept as one expression: equal order needs equal
// rounding.
double lag(double weight, int64_t k, int64_t used) {
  return weight * std::max(static_cast<double>(k), 1.0) - static_cast<double>(used);
}

}  // namespace

std::vector<double> normalize_weights(std::span<const double> weights) {
  check_datasets(weights.size());
  for (size_t i = 0; i < weights.size(); ++i)
    if (!std::isfinite(weights[i]) || weights[i] <= 0)
      input_error("weight {} of the blend is {}; weights must be above 0 (leave a dataset out instead)", i,
                  weights[i]);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<double> normalized(weights.begin(), weights.end());
  for (double& weight : normalized) weight /= sum;
  return normalized;
}

BlendIndex build_blend_index(std::span<const double> weights, int64_t size) {
  const std::vector<double> share = normalize_weights(weights);
  std::vector<int64_t> used(share.size(), 0);
  BlendIndex index;
  index.dataset.reserve(static_cast<size_t>(size));
  index.sample.reserve(static_cast<size_t>(size));
  for (int64_t k = 0; k < size; ++k) {
    size_t chosen = 0;
    for (size_t d = 1; d < share.size(); ++d)
      if (lag(share[d], k, used[d]) > lag(share[chosen], k, used[chosen])) chosen = d;
    index.dataset.push_back(static_cast<int16_t>(chosen));
    index.sample.push_back(used[chosen]++);
  }
  return index;
}

BlendIndex build_exhaustive_blend_index(std::span<const int64_t> sizes) {
  check_datasets(sizes.size());
  const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  std::vector<size_t> unspent;
  for (size_t d = 0; d < sizes.size(); ++d)
    if (sizes[d] > 0) unspent.push_back(d);
  std::vector<int64_t> used(sizes.size(), 0);
  BlendIndex index;
  for (int64_t k = 0; k < total; ++k) {
    const auto behind = [&](size_t d) {
      return lag(static_cast<double>(sizes[d]) / static_cast<double>(total), k, used[d]);
    };
    size_t chosen = unspent[0];
    for (const size_t d : unspent)
      if (behind(d) > behind(chosen)) chosen = d;
    index.dataset.push_back(static_cast<int16_t>(chosen));
    index.sample.push_back(used[chosen]++);
    if (used[chosen] == sizes[chosen]) std::erase(unspent, chosen);
  }
  return index;
}

BlendSizes blend_sizes(std::span<const double> weights, int64_t size) {
  BlendSizes sizes;
  for (const double weight : normalize_weights(weights)) {
    const double share = std::ceil(static_cast<double>(size) * weight);
    sizes.total += static_cast<int64_t>(share);
    sizes.datasets.push_back(static_cast<int64_t>(std::ceil(share * 1.005)));
  }
  return sizes;
}

BlendedDataset::BlendedDataset(Sources sources, std::span<const double> weights, int64_t size)
    : sources_(std::move(sources)), index_(build_blend_index(weights, size)) {
  check_sources(sources_);
  require(weights.size() == sources_.size(), "{} weights for {} datasets", weights.size(), sources_.size());
  std::vector<int64_t> used(sources_.size(), 0);
  for (const int16_t d : index_.dataset) ++used[static_cast<size_t>(d)];
  for (size_t d = 0; d < sources_.size(); ++d)
    if (used[d] > sources_[d]->size())
      input_error("the blend needs {} samples of dataset {}, but it has {}", used[d], d, sources_[d]->size());
  // The size does not enter: the beginning of a longer blend is the same blend.
  Hasher hash;
  hash.add(std::string_view("blend"));
  for (const double weight : normalize_weights(weights)) hash.add(weight);
  for (const auto& source : sources_) hash.add(source->fingerprint());
  fingerprint_ = hash.value();
}

BlendedDataset::BlendedDataset(Sources sources) : sources_(std::move(sources)) {
  check_sources(sources_);
  std::vector<int64_t> sizes;
  Hasher hash;
  hash.add(std::string_view("exhaustive blend"));
  for (const auto& source : sources_) {
    sizes.push_back(source->size());
    hash.add(source->fingerprint());
  }
  index_ = build_exhaustive_blend_index(sizes);
  fingerprint_ = hash.value();
}

std::pair<const SampleSource*, int64_t> BlendedDataset::locate(int64_t index) const {
  require(index >= 0 && index < size(), "sample {} of {} does not exist", index, size());
  const auto k = static_cast<size_t>(index);
  return {sources_[static_cast<size_t>(index_.dataset[k])].get(), index_.sample[k]};
}

void BlendedDataset::fetch(int64_t index, Sample& sample) const {
  const auto [source, place] = locate(index);
  source->fetch(place, sample);
}

int64_t BlendedDataset::valid_tokens(int64_t index) const {
  const auto [source, place] = locate(index);
  return source->valid_tokens(place);
}

ConcatenatedDataset::ConcatenatedDataset(std::vector<std::shared_ptr<const SampleSource>> sources)
    : sources_(std::move(sources)) {
  check_sources(sources_);
  int64_t end = 0;
  for (const auto& source : sources_) ends_.push_back(end += source->size());
}

std::pair<const SampleSource*, int64_t> ConcatenatedDataset::locate(int64_t index) const {
  require(index >= 0 && index < size(), "sample {} of {} does not exist", index, size());
  const auto which = std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin();
  const auto& source = sources_[static_cast<size_t>(which)];
  return {source.get(), index - (ends_[static_cast<size_t>(which)] - source->size())};
}

void ConcatenatedDataset::fetch(int64_t index, Sample& sample) const {
  const auto [source, place] = locate(index);
  source->fetch(place, sample);
}

int64_t ConcatenatedDataset::valid_tokens(int64_t index) const {
  const auto [source, place] = locate(index);
  return source->valid_tokens(place);
}

uint64_t ConcatenatedDataset::fingerprint() const {
  Hasher hash;
  hash.add(std::string_view("concatenation"));
  for (const auto& source : sources_) hash.add(source->fingerprint());
  return hash.value();
}

}  // namespace trainer
