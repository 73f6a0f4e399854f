#include "data/dataset_builder.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace trainer {

DatasetBuilder::DatasetBuilder(DataConfig config)
    : config_(std::move(config)), split_(parse_split(config_.split)) {
  if (config_.sources.empty()) input_error("data: no dataset is named");
  if (config_.seed < 0 || config_.seed > std::numeric_limits<uint32_t>::max())
    input_error("data: seed {} is out of range: the shuffle takes 0 to 2^32 - 1", config_.seed);
  for (const auto& source : config_.sources) {
    if (source.weight.has_value() != config_.sources[0].weight.has_value())
      input_error("data: {} {} a weight, but {} {}: give one to all datasets or to none", source.prefix,
                  source.weight ? "has" : "lacks", config_.sources[0].prefix,
                  source.weight ? "does not" : "does");
    datasets_.push_back(std::make_shared<const IndexedDataset>(source.prefix));
  }
}

SequenceRange DatasetBuilder::range(size_t source, Split split) const {
  return split_range(split_, split, datasets_[source]->sequences());
}

int64_t DatasetBuilder::tokens(Split split) const {
  int64_t tokens = 0;
  for (size_t source = 0; source < datasets_.size(); ++source) {
    const SequenceRange r = range(source, split);
    for (int64_t i = r.begin; i < r.end; ++i) tokens += datasets_[source]->length(i);
  }
  return tokens;
}

std::shared_ptr<const SampleSource> DatasetBuilder::shuffled(size_t source,
                                                             std::optional<int64_t> num_samples) const {
  GptDatasetConfig config;
  config.sequence_length = config_.sequence_length;
  config.seed = static_cast<uint32_t>(config_.seed);
  config.num_samples = num_samples;
  config.samples = config_.samples;
  config.split = split_name(Split::kTrain);
  return std::make_shared<const GptDataset>(datasets_[source], range(source, Split::kTrain),
                                            std::move(config));
}

std::shared_ptr<const SampleSource> DatasetBuilder::train(int64_t num_samples) const {
  if (num_samples < 1)
    input_error("data: {} training samples are asked for; at least 1 is needed", num_samples);
  if (datasets_.size() == 1) return shuffled(0, num_samples);

  std::vector<double> weights;
  BlendedDataset::Sources sources;
  if (config_.sources[0].weight) {
    for (const auto& source : config_.sources) weights.push_back(*source.weight);
    const BlendSizes sizes = blend_sizes(weights, num_samples);
    for (size_t i = 0; i < datasets_.size(); ++i) sources.push_back(shuffled(i, sizes.datasets[i]));
    return std::make_shared<const BlendedDataset>(std::move(sources), weights, sizes.total);
  }
  int64_t available = 0;
  for (size_t i = 0; i < datasets_.size(); ++i) {
    sources.push_back(shuffled(i, std::nullopt));
    weights.push_back(static_cast<double>(sources.back()->size()));
    available += sources.back()->size();
  }
  if (available < num_samples)
    input_error(
        "data: {} training samples are asked for, but the {} datasets hold {}; train fewer steps, or give "
        "every "
        "dataset a weight, which lets each be gone through as often as needed",
        num_samples, datasets_.size(), available);
  return std::make_shared<const BlendedDataset>(std::move(sources), weights, num_samples);
}

std::shared_ptr<const SampleSource> DatasetBuilder::evaluation(Split split) const {
  std::vector<std::shared_ptr<const SampleSource>> sources;
  for (size_t i = 0; i < datasets_.size(); ++i) {
    const SequenceRange r = range(i, split);
    int64_t tokens = 0;
    for (int64_t sequence = r.begin; sequence < r.end && tokens < 2; ++sequence)
      tokens += datasets_[i]->length(sequence);
    if (tokens < 2) continue;
    GptDatasetConfig config;
    config.sequence_length = config_.sequence_length;
    config.order = GptDatasetConfig::Order::kSequential;
    config.samples = config_.samples;
    config.split = split_name(split);
    sources.push_back(std::make_shared<const GptDataset>(datasets_[i], r, std::move(config)));
  }
  if (sources.empty())
    input_error("data: the {} split (\"{}\") holds no text: it needs at least 2 tokens; widen it or add data",
                split_name(split), config_.split);
  if (sources.size() == 1) return sources[0];
  return std::make_shared<const ConcatenatedDataset>(std::move(sources));
}

}  // namespace trainer
