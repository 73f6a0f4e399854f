#include "data/gpt_dataset.h"

#include <algorithm>
#include <map>

#include "dataset_files.h"

namespace trainer {
namespace {

using namespace trainer::testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

GptDatasetConfig sequential(int64_t length) {
  GptDatasetConfig config;
  config.sequence_length = length;
  config.order = GptDatasetConfig::Order::kSequential;
  return config;
}

GptDataset whole(std::shared_ptr<const IndexedDataset> dataset, GptDatasetConfig config) {
  const SequenceRange range{0, dataset->sequences()};
  return GptDataset(std::move(dataset), range, std::move(config));
}

Sample fetched(const SampleSource& source, int64_t index) {
  Sample sample;
  source.fetch(index, sample);
  EXPECT_EQ(sample.valid_tokens, source.valid_tokens(index));
  EXPECT_EQ(sample.valid_tokens, std::count_if(sample.labels.begin(), sample.labels.end(),
                                               [](int32_t label) { return label != kIgnoredLabel; }));
  return sample;
}

// One sequence a document, as token lists.
std::shared_ptr<const IndexedDataset> documents(const TemporaryFolder& folder,
                                                const std::vector<std::vector<int32_t>>& texts) {
  IndexedDatasetWriter writer(folder / "texts", 100, std::nullopt);
  for (const auto& text : texts) writer.add_document(text);
  writer.finish();
  return std::make_shared<const IndexedDataset>(folder / "texts");
}

TEST(GptDataset, EvaluationCountsEveryTargetOnce) {
  const TemporaryFolder folder;
  for (const auto& lengths :
       std::vector<std::vector<int32_t>>{{5, 1, 0, 7}, {2}, {30}, {0, 0, 3, 0}, {4, 4, 1, 0}}) {
    const auto dataset = counting_dataset(folder, "d", lengths);
    for (const int64_t length : {1, 2, 4, 5, 12, 100}) {
      const GptDataset gpt = whole(dataset, sequential(length));
      EXPECT_EQ(gpt.size(), (dataset->tokens() - 1 + length - 1) / length);
      std::map<int32_t, int> targets;
      int64_t valid = 0;
      for (int64_t i = 0; i < gpt.size(); ++i) {
        const Sample sample = fetched(gpt, i);
        valid += sample.valid_tokens;
        for (size_t k = 0; k < sample.labels.size(); ++k)
          if (sample.labels[k] != kIgnoredLabel) {
            ++targets[sample.labels[k]];
            EXPECT_EQ(sample.labels[k], sample.tokens[k] + 1);  // the dataset counts
          } else {
            EXPECT_EQ(i, gpt.size() - 1);
          }
      }
      EXPECT_EQ(valid, dataset->tokens() - 1);
      EXPECT_EQ(static_cast<int64_t>(targets.size()), valid);
      EXPECT_EQ(targets.count(0), 0u);  // nothing comes before the first token
    }
  }
}

TEST(GptDataset, EveryEpochHoldsEverySequenceOnce) {
  const TemporaryFolder folder;
  const auto dataset = counting_dataset(folder, "d", {3, 5, 2, 7, 4, 1, 6, 8, 12, 9});
  GptDatasetConfig config;
  config.sequence_length = 4;
  config.num_samples = 30;
  const GptDataset gpt(dataset, {2, 9}, config);
  EXPECT_GE(gpt.size(), 30);
  std::map<int32_t, int64_t> seen;
  for (const int32_t sequence : gpt.document_index()) ++seen[sequence];
  ASSERT_EQ(seen.size(), 7u);
  for (const auto& [sequence, times] : seen) {
    EXPECT_TRUE(sequence >= 2 && sequence < 9);
    EXPECT_EQ(times, gpt.epochs().epochs);
  }
}

TEST(GptDataset, PaddingIsMarkedByPlaceNotById) {
  const TemporaryFolder folder;
  const auto dataset = documents(folder, {{0, 5, 0}, {0}});  // token 0 is real, and EOD
  GptDatasetConfig config = sequential(6);
  config.samples.eod = 0;
  const Sample sample = fetched(whole(dataset, config), 0);
  EXPECT_THAT(sample.tokens, ElementsAre(0, 5, 0, 0, 0, 0));
  EXPECT_THAT(sample.labels, ElementsAre(5, 0, 0, -100, -100, -100));
  EXPECT_EQ(sample.valid_tokens, 3);
}

TEST(GptDataset, LossIsMaskedWhereTheInputIsEod) {
  const TemporaryFolder folder;
  const auto dataset = documents(folder, {{1, 2, 9}, {3, 9}, {4, 5, 6, 9}});
  GptDatasetConfig config = sequential(8);
  config.samples.eod = 9;
  config.samples.eod_mask_loss = true;
  const Sample sample = fetched(whole(dataset, config), 0);
  EXPECT_THAT(sample.tokens, ElementsAre(1, 2, 9, 3, 9, 4, 5, 6));
  EXPECT_THAT(sample.labels, ElementsAre(2, 9, -100, 9, -100, 5, 6, 9));
  EXPECT_THAT(sample.positions, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(sample.document_starts, ElementsAre());
}

TEST(GptDataset, DocumentsStartAfterEodInsideASequenceToo) {
  const TemporaryFolder folder;
  const auto dataset = documents(folder, {{1, 2, 9, 3, 9}, {4, 5, 9}});
  GptDatasetConfig config = sequential(7);
  config.samples.eod = 9;
  config.samples.reset_position_ids = true;
  config.samples.document_masking = true;
  const Sample sample = fetched(whole(dataset, config), 0);
  EXPECT_THAT(sample.positions, ElementsAre(0, 1, 2, 0, 1, 0, 1));
  EXPECT_THAT(sample.document_starts, ElementsAre(3, 5));
  EXPECT_EQ(sample.valid_tokens, 7);
}

// The label of the last input belongs to the next document when the next sample's first input ends one.
TEST(GptDataset, CrossDocumentLabelAtTheEndOfASample) {
  const TemporaryFolder folder;
  const auto dataset = documents(folder, {{1, 2, 3}, {4, 5}});
  GptDatasetConfig config = sequential(3);
  config.samples.ignore_cross_document_labels = true;
  const GptDataset gpt = whole(dataset, config);
  EXPECT_THAT(fetched(gpt, 0).labels, ElementsAre(2, 3, -100));
  EXPECT_THAT(fetched(gpt, 1).tokens, ElementsAre(4, 5, 0));
  EXPECT_THAT(fetched(gpt, 1).labels, ElementsAre(5, -100, -100));
}

TEST(GptDataset, SameSampleTwiceIsTheSame) {
  const TemporaryFolder folder;
  const auto dataset = counting_dataset(folder, "d", {30, 20, 10});
  GptDatasetConfig config;
  config.sequence_length = 7;
  config.samples.eod = 5;
  config.samples.eod_mask_loss = config.samples.reset_position_ids = config.samples.document_masking = true;
  const GptDataset gpt = whole(dataset, config);
  for (int64_t i = 0; i < gpt.size(); ++i) {
    const Sample first = fetched(gpt, i);
    Sample again = fetched(gpt, (i + 1) % gpt.size());  // storage that held another sample
    gpt.fetch(i, again);
    EXPECT_EQ(first.tokens, again.tokens);
    EXPECT_EQ(first.labels, again.labels);
    EXPECT_EQ(first.positions, again.positions);
    EXPECT_EQ(first.document_starts, again.document_starts);
  }
}

TEST(GptDataset, IdsOutsideTheVocabularyAreNamedWhenFetched) {
  const TemporaryFolder folder;
  GptDatasetConfig config = sequential(4);
  config.samples.vocab_size = 12;
  const GptDataset gpt = whole(counting_dataset(folder, "d", {5, 1, 0, 7}), config);
  fetched(gpt, 0);
  EXPECT_THAT(input_error_of([&] { fetched(gpt, 2); }),
              HasSubstr("token 6 of sequence 3 (token 12 of the file) is 12, which is not an id below 12"));
}

TEST(GptDataset, FingerprintFollowsTheOrder) {
  const TemporaryFolder folder;
  const std::vector<int32_t> lengths{3, 5, 2, 7, 4, 1, 6, 8, 12, 9};
  const auto dataset = counting_dataset(folder, "d", lengths);
  struct Key {
    int64_t length = 8;
    uint32_t seed = 1;
    std::optional<int64_t> samples = 6;
    SequenceRange range{0, 10};
    bool drop_last = true, extra = true;
    GptDatasetConfig::Order order = GptDatasetConfig::Order::kShuffled;
  };
  const auto print = [&](const Key& key, std::shared_ptr<const IndexedDataset> data) {
    GptDatasetConfig config;
    config.sequence_length = key.length;
    config.seed = key.seed;
    config.num_samples = key.samples;
    config.drop_last = key.drop_last;
    config.extra_token = key.extra;
    config.order = key.order;
    return GptDataset(std::move(data), key.range, config).fingerprint();
  };
  const uint64_t base = print({}, dataset);
  EXPECT_EQ(print({.samples = 7}, dataset), base);  // as many epochs, so the same order
  EXPECT_EQ(print({}, counting_dataset(folder, "elsewhere", lengths)), base);
  EXPECT_NE(print({.length = 7}, dataset), base);
  EXPECT_NE(print({.seed = 2}, dataset), base);
  EXPECT_NE(print({.samples = 9}, dataset), base);
  EXPECT_NE(print({.samples = 20}, dataset), print({.samples = 9}, dataset));
  EXPECT_NE(print({.range = {0, 9}}, dataset), base);
  EXPECT_NE(print({.range = {1, 10}}, dataset), base);
  EXPECT_EQ(print({.drop_last = false}, dataset), base);  // 57 tokens: nothing is partial
  EXPECT_NE(print({.length = 9, .drop_last = false}, dataset), print({.length = 9}, dataset));
  EXPECT_NE(print({.extra = false}, dataset), base);
  EXPECT_NE(print({.order = GptDatasetConfig::Order::kSequential}, dataset), base);
  auto longer = lengths;
  std::swap(longer[0], longer[1]);
  EXPECT_NE(print({}, counting_dataset(folder, "other", longer)), base);
}

TEST(Cases, SampleWindowsAndTinyData) {
  const TemporaryFolder folder;
  const GptDataset gpt = whole(counting_dataset(folder, "d", {5, 1, 0, 7}), sequential(4));
  ASSERT_EQ(gpt.size(), 3);
  for (int32_t i = 0; i < 3; ++i)
    EXPECT_THAT(gpt.text(i), ElementsAre(4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3, 4 * i + 4));
  EXPECT_THAT(gpt.sample_index().narrow, ElementsAre(0, 0, 0, 4, 3, 2, 3, 6));

  GptDatasetConfig config;
  config.sequence_length = 4;
  const auto samples = [&](std::vector<int32_t> lengths) {
    return whole(counting_dataset(folder, "d", lengths), config).size();
  };
  EXPECT_EQ(samples({5, 1, 0, 7}), 3);
  EXPECT_EQ(samples({5, 0, 7}), 2);
  EXPECT_EQ(samples({5}), 1);
  for (const std::optional<int64_t> wanted : {std::optional<int64_t>(), std::optional<int64_t>(3)}) {
    config.num_samples = wanted;
    EXPECT_THAT(input_error_of([&] { samples({4}); }), HasSubstr("has 4 tokens in 1 sequences"));
    EXPECT_THAT(input_error_of([&] { samples({1}); }), HasSubstr("needs 5"));
    EXPECT_THAT(input_error_of([&] { samples({0, 0}); }), HasSubstr("0 tokens"));
    EXPECT_THAT(input_error_of([&] { samples({}); }), HasSubstr("0 tokens in 0 sequences"));
  }
  EXPECT_THAT(input_error_of([&] { whole(counting_dataset(folder, "d", {1}), sequential(4)); }),
              HasSubstr("needs 2"));
  config.sequence_length = 0;
  EXPECT_THAT(input_error_of([&] { samples({5}); }), HasSubstr("sequence_length 0"));
}

TEST(Cases, SamplesOfDataPast32Bits) {
  const TemporaryFolder folder;
  put_file(folder / "t.idx", index_bytes(TokenType::kI32, {1073741824, 1073741824, 5}));
  put_file(folder / "t.bin", "");
  std::filesystem::resize_file(folder / "t.bin", 8589934612);  // sparse
  const GptDataset gpt = whole(std::make_shared<const IndexedDataset>(folder / "t"), sequential(2048));
  EXPECT_EQ(gpt.size(), 1048577);  // the last one partial
  EXPECT_EQ(gpt.valid_tokens(1048576), 2147483652 - int64_t{1048576} * 2048);
  GptDatasetConfig config;
  config.sequence_length = 2048;
  EXPECT_EQ(whole(std::make_shared<const IndexedDataset>(folder / "t"), config).size(), 1048576);
}

TEST(Cases, PackedDocumentsHaveBoundaries) {
  const TemporaryFolder folder;
  const auto dataset = documents(folder, {{1, 5, 6}, {1, 7, 8, 9}});
  GptDatasetConfig config = sequential(7);
  config.samples.reset_position_ids = true;
  config.samples.document_masking = true;
  config.samples.ignore_cross_document_labels = true;
  const Sample sample = fetched(whole(dataset, config), 0);
  EXPECT_THAT(sample.positions, ElementsAre(0, 1, 2, 0, 1, 2, 3));
  EXPECT_THAT(sample.document_starts, ElementsAre(3));
  EXPECT_THAT(sample.labels, ElementsAre(5, 6, -100, 7, 8, 9, -100));
  EXPECT_EQ(sample.valid_tokens, 5);
}

}  // namespace
}  // namespace trainer
