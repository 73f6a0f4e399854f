#include "data/blended_dataset.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "data/dataset_builder.h"
#include "dataset_files.h"

namespace trainer {
namespace {

using namespace trainer::testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Blend, SharesFollowTheWeights) {
  const std::vector<double> weights{5, 3, 1.5, 0.5};
  const BlendIndex index = build_blend_index(weights, 5000);
  std::vector<double> used(4, 0);
  for (int64_t k = 0; k < index.size(); ++k) {
    const auto d = static_cast<size_t>(index.dataset[static_cast<size_t>(k)]);
    EXPECT_EQ(index.sample[static_cast<size_t>(k)], static_cast<int64_t>(used[d]));
    ++used[d];
    for (size_t i = 0; i < 4; ++i)
      ASSERT_LT(std::abs(used[i] - weights[i] / 10 * static_cast<double>(k + 1)), 4.0);
  }
  // A longer blend begins the same way.
  const BlendIndex longer = build_blend_index(weights, 6000);
  EXPECT_TRUE(std::equal(index.dataset.begin(), index.dataset.end(), longer.dataset.begin()));
}

TEST(Blend, SizesLeaveAReserve) {
  const BlendSizes sizes = blend_sizes(std::vector<double>{0.3, 0.7}, 1001);
  EXPECT_THAT(sizes.datasets, ElementsAre(303, 705));  // ceil(301 * 1.005), ceil(701 * 1.005)
  EXPECT_EQ(sizes.total, 301 + 701);
  // What the greedy rule takes is within what each dataset was built for.
  for (const int64_t size : {1, 7, 100, 12345}) {
    const std::vector<double> weights{0.2, 0.5, 0.29, 0.01};
    const BlendSizes built = blend_sizes(weights, size);
    std::vector<int64_t> used(4, 0);
    for (const int16_t d : build_blend_index(weights, built.total).dataset) ++used[static_cast<size_t>(d)];
    for (size_t i = 0; i < 4; ++i) EXPECT_LE(used[i], built.datasets[i]);
  }
}

TEST(Blend, BadWeightsAreRefused) {
  for (const double weight : {0.0, -1.0, std::nan(""), HUGE_VAL})
    EXPECT_THAT(input_error_of([&] {
                  normalize_weights(std::vector<double>{1, weight});
                }),
                HasSubstr("weight 1"));
  EXPECT_THAT(input_error_of([] { build_blend_index({}, 3); }), HasSubstr("datasets"));
}

class Builder : public ::testing::Test {
 protected:
  Builder() {
    counting_dataset(folder_, "a", std::vector<int32_t>(10, 6));
    counting_dataset(folder_, "b", std::vector<int32_t>(20, 5), 1000);
  }
  DataConfig config(std::vector<std::optional<double>> weights, const std::string& split = "8,1,1") {
    DataConfig config;
    const char* names[] = {"a", "b"};
    for (size_t i = 0; i < weights.size(); ++i) config.sources.push_back({folder_ / names[i], weights[i]});
    config.split = split;
    config.sequence_length = 4;
    return config;
  }
  static std::vector<int> from_b(const SampleSource& source, int64_t count) {
    std::vector<int> which;
    Sample sample;
    for (int64_t i = 0; i < count; ++i) {
      source.fetch(i, sample);
      EXPECT_EQ(sample.valid_tokens, source.valid_tokens(i));
      which.push_back(sample.tokens[0] >= 1000);
    }
    return which;
  }

  TemporaryFolder folder_;
};

TEST_F(Builder, OneSourceIsReadDirectly) {
  const DatasetBuilder builder(config({std::nullopt}));
  EXPECT_EQ(builder.tokens(Split::kTrain), 48);
  EXPECT_EQ(builder.tokens(Split::kValid), 6);
  GptDatasetConfig gpt;
  gpt.sequence_length = 4;
  gpt.num_samples = 40;
  EXPECT_EQ(builder.train(40)->fingerprint(), GptDataset(builder.datasets()[0], {0, 8}, gpt).fingerprint());
  EXPECT_GE(builder.train(40)->size(), 40);  // several epochs
}

TEST_F(Builder, WeightsMixAndRepeat) {
  const auto source = DatasetBuilder(config({1, 3})).train(100);
  ASSERT_GE(source->size(), 100);
  const std::vector<int> which = from_b(*source, 100);
  EXPECT_EQ(std::count(which.begin(), which.end(), 1), 75);
}

TEST_F(Builder, WithoutWeightsInProportionAndOnce) {
  const DatasetBuilder builder(config({std::nullopt, std::nullopt}));
  // (48 - 1) / 4 = 11 and (80 - 1) / 4 = 19 samples.
  const auto all = builder.train(30);
  ASSERT_EQ(all->size(), 30);
  const std::vector<int> which = from_b(*all, 30);
  EXPECT_EQ(std::count(which.begin(), which.end(), 1), 19);
  EXPECT_THAT(input_error_of([&] { builder.train(31); }), HasSubstr("the 2 datasets hold 30"));
}

TEST_F(Builder, EveryTokenOfEverySourceIsEvaluatedOnce) {
  const auto source = DatasetBuilder(config({1, 3}, "0,1,0")).evaluation(Split::kValid);
  std::map<int32_t, int> targets;
  Sample sample;
  for (int64_t i = 0; i < source->size(); ++i) {
    source->fetch(i, sample);
    EXPECT_EQ(sample.valid_tokens, source->valid_tokens(i));
    for (const int32_t label : sample.labels)
      if (label != kIgnoredLabel) ++targets[label];
  }
  EXPECT_EQ(targets.size(), 59u + 99u);
  for (const auto& [label, times] : targets) EXPECT_EQ(times, 1) << label;
}

TEST_F(Builder, ExhaustiveBlendUsesEverySampleOnce) {
  const DatasetBuilder builder(config({std::nullopt, std::nullopt}, "1"));
  const auto a = builder.evaluation(Split::kTrain);
  GptDatasetConfig gpt;
  gpt.sequence_length = 4;
  std::vector<std::shared_ptr<const SampleSource>> sources;
  int64_t total = 0;
  for (const auto& dataset : builder.datasets()) {
    sources.push_back(
        std::make_shared<const GptDataset>(dataset, SequenceRange{0, dataset->sequences()}, gpt));
    total += sources.back()->size();
  }
  const BlendedDataset blend(sources);
  ASSERT_EQ(blend.size(), total);
  std::map<std::pair<int, int64_t>, int> seen;
  for (size_t i = 0; i < static_cast<size_t>(total); ++i)
    ++seen[{blend.index().dataset[i], blend.index().sample[i]}];
  EXPECT_EQ(seen.size(), static_cast<size_t>(total));
  EXPECT_NE(blend.fingerprint(), a->fingerprint());
}

TEST_F(Builder, FingerprintFollowsWeightsAndEpochs) {
  const auto print = [&](std::vector<std::optional<double>> weights, int64_t samples) {
    return DatasetBuilder(config(weights)).train(samples)->fingerprint();
  };
  EXPECT_EQ(print({1, 1}, 10), print({2, 2}, 12));  // as many epochs of each
  EXPECT_NE(print({1, 1}, 10), print({1, 2}, 10));
  EXPECT_NE(print({1, 1}, 10), print({1, 1}, 100));
  EXPECT_NE(print({1}, 10), print({1, 1}, 10));
}

TEST_F(Builder, WrongConfigsAreNamed) {
  EXPECT_THAT(input_error_of([&] { DatasetBuilder{DataConfig{}}; }), HasSubstr("no dataset"));
  EXPECT_THAT(input_error_of([&] { DatasetBuilder{config({1, std::nullopt})}; }), HasSubstr("lacks"));
  EXPECT_THAT(input_error_of([&] { DatasetBuilder{config({std::nullopt}, "0,1,0")}.train(1); }),
              HasSubstr("train split has 0 tokens"));
  EXPECT_THAT(
      input_error_of([&] { DatasetBuilder{config({std::nullopt}, "1,0,0")}.evaluation(Split::kValid); }),
      HasSubstr("validation split"));
  EXPECT_THAT(input_error_of([&] { DatasetBuilder{config({std::nullopt})}.train(0); }),
              HasSubstr("at least 1"));
  DataConfig seeded = config({std::nullopt});
  seeded.seed = int64_t{1} << 32;
  EXPECT_THAT(input_error_of([&] { DatasetBuilder{seeded}; }), HasSubstr("seed 4294967296"));
}

}  // namespace
}  // namespace trainer
