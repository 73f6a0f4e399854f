#include "data/gpt_dataset.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/hash.h"

namespace trainer {
namespace {

constexpr int32_t kPadding = -1;  // no token has this id, so padding is never taken for a token

}  // namespace

GptDataset::GptDataset(std::shared_ptr<const IndexedDataset> dataset, SequenceRange range,
                       GptDatasetConfig config)
    : dataset_(std::move(dataset)), range_(range), config_(std::move(config)) {
  const int64_t length = config_.sequence_length;
  require(range.begin >= 0 && range.begin <= range.end && range.end <= dataset_->sequences(),
          "sequences [{}, {}) of {} do not exist", range.begin, range.end, dataset_->prefix());
  if (length < 1 || length >= std::numeric_limits<int32_t>::max())
    input_error("sequence_length {} is out of range: it must be at least 1 and below 2^31 - 1", length);

  std::vector<int32_t> lengths(static_cast<size_t>(range.size()));
  for (int64_t i = 0; i < range.size(); ++i)
    tokens_ += lengths[static_cast<size_t>(i)] = static_cast<int32_t>(dataset_->length(range.begin + i));
  const bool sequential = config_.order == GptDatasetConfig::Order::kSequential;
  const int64_t least = extra() + (config_.drop_last && !sequential ? length : 1);
  if (tokens_ < least)
    input_error(
        "{}: its {} split has {} tokens in {} sequences, but one sample of sequence_length {} needs {}; add "
        "data, widen the split or shorten the sequence",
        dataset_->prefix(), config_.split, tokens_, range.size(), length, least);

  RandomState random(config_.seed);
  if (sequential) {
    if (range.end > std::numeric_limits<int32_t>::max())
      input_error("{}: more than 2^31 - 1 sequences cannot be read in order; split it", dataset_->prefix());
    document_index_.resize(lengths.size());
    std::iota(document_index_.begin(), document_index_.end(), static_cast<int32_t>(range.begin));
    count_ = (tokens_ - extra() + length - 1) / length;
  } else {
    plan_ = plan_epochs(tokens_, length, extra(), config_.num_samples);
    document_index_ = build_document_index(range, plan_, random);
    count_ = sample_count(plan_.epochs * tokens_, length, extra(), config_.drop_last);
  }
  complete_ = std::min(count_, (plan_.epochs * tokens_ - extra()) / length);

  // Offsets are below a sequence's length and so always fit 32 bits; positions may not.
  if (document_index_.size() <= static_cast<size_t>(std::numeric_limits<int32_t>::max()))
    sample_index_.narrow =
        build_sample_index<int32_t>(lengths, range.begin, document_index_, length, extra(), count_);
  else
    sample_index_.wide =
        build_sample_index<int64_t>(lengths, range.begin, document_index_, length, extra(), count_);
  if (sequential) return;
  const int64_t separate = plan_.separate_final ? plan_.samples_before_final : count_;
  if (count_ < int64_t{std::numeric_limits<uint32_t>::max()} - 1)
    shuffle_index_.narrow = build_shuffle_index<uint32_t>(separate, count_, random);
  else
    shuffle_index_.wide = build_shuffle_index<int64_t>(separate, count_, random);
}

int64_t GptDataset::gather(int64_t index, std::span<int32_t> text, std::vector<int32_t>& joins) const {
  require(index >= 0 && index < count_, "sample {} of {} does not exist", index, count_);
  const int64_t sample = shuffle_index_.size() == 0 ? index : shuffle_index_[index];
  const int64_t first = sample_index_[2 * sample], last = sample_index_[2 * sample + 2];
  int64_t filled = 0;
  for (int64_t position = first; position <= last; ++position) {
    const int64_t sequence = document_index_[static_cast<size_t>(position)];
    // An offset of -1 stands for "one before the end" of an empty sequence at the very end of the data.
    const int64_t begin = position == first ? std::max<int64_t>(0, sample_index_[2 * sample + 1]) : 0;
    const int64_t end =
        position == last ? sample_index_[2 * sample + 3] + extra() : dataset_->length(sequence);
    if (end <= begin) continue;
    if (filled > 0) joins.push_back(static_cast<int32_t>(filled));
    dataset_->read(sequence, begin,
                   text.subspan(static_cast<size_t>(filled), static_cast<size_t>(end - begin)),
                   config_.samples.vocab_size);
    filled += end - begin;
  }
  std::fill(text.begin() + filled, text.end(), kPadding);
  return filled;
}

std::vector<int32_t> GptDataset::text(int64_t index) const {
  std::vector<int32_t> text(static_cast<size_t>(config_.sequence_length + extra())), joins;
  gather(index, text, joins);
  return text;
}

void GptDataset::fetch(int64_t index, Sample& sample) const {
  const SampleOptions& options = config_.samples;
  const auto length = static_cast<size_t>(config_.sequence_length);
  std::vector<int32_t> text(length + static_cast<size_t>(extra())), joins;
  const auto filled = static_cast<size_t>(gather(index, text, joins));

  sample.tokens.resize(length);
  sample.labels.resize(length);
  sample.positions.resize(length);
  sample.document_starts.clear();
  sample.valid_tokens = 0;
  auto join = joins.begin();
  bool starts = false;  // whether a document after the first starts at i
  int32_t position = 0;
  for (size_t i = 0; i < length; ++i) {
    if (starts && options.document_masking) sample.document_starts.push_back(static_cast<int32_t>(i));
    if (starts && options.reset_position_ids) position = 0;
    sample.positions[i] = position++;
    sample.tokens[i] = i < filled ? text[i] : 0;

    const bool joined = join != joins.end() && static_cast<size_t>(*join) == i + 1;
    if (joined) ++join;
    const bool ends = options.eod && text[i] == *options.eod;
    starts = i + 1 < filled && (joined || ends);
    const bool counts = i + 1 < filled && !(options.eod_mask_loss && ends) &&
                        !(options.ignore_cross_document_labels && starts);
    sample.labels[i] = counts ? text[i + 1] : kIgnoredLabel;
    sample.valid_tokens += counts;
  }
}

int64_t GptDataset::valid_tokens(int64_t index) const {
  require(index >= 0 && index < count_, "sample {} of {} does not exist", index, count_);
  const SampleOptions& options = config_.samples;
  const int64_t sample = shuffle_index_.size() == 0 ? index : shuffle_index_[index];
  if (sample < complete_ && !options.eod_mask_loss && !options.ignore_cross_document_labels)
    return config_.sequence_length + extra() - 1;
  Sample whole;
  fetch(index, whole);
  return whole.valid_tokens;
}

uint64_t GptDataset::fingerprint() const {
  return Hasher()
      .add(std::string_view("gpt"))
      .add(dataset_->lengths_hash())
      .add(range_.begin)
      .add(range_.end)
      .add(config_.sequence_length)
      .add(config_.order)
      .add(config_.extra_token)
      .add(config_.order == GptDatasetConfig::Order::kSequential ? 0u : config_.seed)
      .add(count_)
      .add(plan_.epochs)
      .add(plan_.separate_final)
      .value();
}

}  // namespace trainer
