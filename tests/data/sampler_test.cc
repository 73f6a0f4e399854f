#include "data/sampler.h"

#include <algorithm>
#include <map>

#include "data/gpt_dataset.h"
#include "dataset_files.h"

namespace trainer {
namespace {

using namespace trainer::testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// `samples` samples of `length` tokens, which count: sample i holds i * length, i * length + 1, …
std::shared_ptr<const SampleSource> counting_samples(const TemporaryFolder& folder, int32_t samples,
                                                     int32_t length) {
  const auto dataset = counting_dataset(folder, "d", {samples * length + 1});
  GptDatasetConfig config;
  config.sequence_length = length;
  config.order = GptDatasetConfig::Order::kSequential;
  return std::make_shared<const GptDataset>(dataset, SequenceRange{0, 1}, config);
}

// Sample ids that all ranks read for the global batch after `consumed` samples, in the order of the batch,
// taken from the tokens.
std::vector<int64_t> read_by_all(const std::shared_ptr<const SampleSource>& source, SamplerConfig config,
                                 int64_t consumed) {
  std::vector<int64_t> ids;
  Batch batch;
  for (int64_t step = 0; step < config.global_batch_size / (config.micro_batch_size * config.ranks); ++step)
    for (config.rank = 0; config.rank < config.ranks; ++config.rank) {
      Sampler(source, config).fetch(consumed, step, batch);
      for (int64_t row = 0; row < batch.micro_batch; ++row) {
        const int64_t id = batch.tokens[static_cast<size_t>(row * batch.sequence)] / batch.sequence;
        EXPECT_EQ(batch.sample_ids[static_cast<size_t>(row)], id);
        ids.push_back(id);
      }
    }
  return ids;
}

std::vector<int64_t> count_from(int64_t first, int64_t count) {
  std::vector<int64_t> ids(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) ids[static_cast<size_t>(i)] = first + i;
  return ids;
}

TEST(Sampler, GlobalBatchDoesNotDependOnRanks) {
  const TemporaryFolder folder;
  const auto source = counting_samples(folder, 48, 3);
  for (const int64_t micro : {1, 2, 3, 6})
    for (const int64_t ranks : {1, 2, 4})
      for (const int64_t consumed : {0, 24, 5}) {
        SamplerConfig config{.micro_batch_size = micro, .global_batch_size = 24, .ranks = ranks};
        EXPECT_EQ(read_by_all(source, config, consumed), count_from(consumed, 24));
      }
}

TEST(Sampler, BatchIsTheSamplesRowByRow) {
  const TemporaryFolder folder;
  const Sampler sampler(counting_samples(folder, 8, 3), {.micro_batch_size = 2, .global_batch_size = 4});
  Batch batch;
  sampler.fetch(4, 1, batch);
  EXPECT_EQ(batch.micro_batch, 2);
  EXPECT_EQ(batch.sequence, 3);
  EXPECT_THAT(batch.sample_ids, ElementsAre(6, 7));
  EXPECT_THAT(batch.tokens, ElementsAre(18, 19, 20, 21, 22, 23));
  EXPECT_THAT(batch.labels, ElementsAre(19, 20, 21, 22, 23, 24));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_THAT(batch.segment_starts, ElementsAre(0, 3, 6));
  EXPECT_EQ(batch.valid_tokens, 6);
  EXPECT_EQ(sampler.micro_batches(), 2);
  EXPECT_EQ(sampler.global_batches(), 2);
}

TEST(Sampler, SegmentsAreDocumentsWithinRows) {
  const TemporaryFolder folder;
  const auto dataset = counting_dataset(folder, "d", {2, 5, 1, 1});
  GptDatasetConfig config;
  config.sequence_length = 4;
  config.order = GptDatasetConfig::Order::kSequential;
  config.samples.document_masking = true;
  const auto source = std::make_shared<const GptDataset>(dataset, SequenceRange{0, 4}, config);
  Batch batch;
  Sampler(source, {.micro_batch_size = 2, .global_batch_size = 2}).fetch(0, 0, batch);
  // Rows 0 1 | 2 3 and 4 5 6 | 7; token 8 is only a label.
  EXPECT_THAT(batch.segment_starts, ElementsAre(0, 2, 4, 7, 8));
}

TEST(Sampler, ValidTokensOfTheGlobalBatchNeedNoOtherRank) {
  const TemporaryFolder folder;
  const auto dataset = counting_dataset(folder, "d", {9, 4, 0, 13, 5, 30, 2});
  for (const bool masked : {false, true}) {
    GptDatasetConfig config;
    config.sequence_length = 5;
    config.drop_last = false;
    config.samples.eod = 20;
    config.samples.eod_mask_loss = config.samples.ignore_cross_document_labels = masked;
    const auto source = std::make_shared<const GptDataset>(dataset, SequenceRange{0, 7}, config);
    int64_t total = 0;
    for (int64_t consumed = 0; consumed < source->size(); consumed += 4) {
      int64_t sum = 0;
      Batch batch;
      SamplerConfig sampling{.micro_batch_size = 1, .global_batch_size = 4, .ranks = 2, .pad_past_end = true};
      for (sampling.rank = 0; sampling.rank < 2; ++sampling.rank) {
        const Sampler sampler(source, sampling);
        for (int64_t step = 0; step < sampler.micro_batches(); ++step) {
          sampler.fetch(consumed, step, batch);
          sum += batch.valid_tokens;
        }
        if (sampling.rank == 1) {
          EXPECT_EQ(sampler.global_valid_tokens(consumed), sum);
        }
      }
      total += sum;
    }
    if (masked)
      EXPECT_LT(total, dataset->tokens() - 1);
    else
      EXPECT_EQ(total, dataset->tokens() - 1);
  }
}

TEST(Sampler, EvaluationPadsTheLastGlobalBatch) {
  const TemporaryFolder folder;
  const auto source = counting_samples(folder, 5, 3);
  std::map<int32_t, int> targets;
  for (const int64_t ranks : {1, 2}) {
    targets.clear();
    SamplerConfig config{.micro_batch_size = 2, .global_batch_size = 4, .ranks = ranks, .pad_past_end = true};
    for (config.rank = 0; config.rank < ranks; ++config.rank) {
      const Sampler sampler(source, config);
      ASSERT_EQ(sampler.global_batches(), 2);
      Batch batch;
      for (int64_t global = 0; global < 2; ++global)
        for (int64_t step = 0; step < sampler.micro_batches(); ++step) {
          sampler.fetch(global * 4, step, batch);
          for (const int32_t label : batch.labels)
            if (label != kIgnoredLabel) ++targets[label];
          for (int64_t row = 0; row < 2; ++row)
            if (batch.sample_ids[static_cast<size_t>(row)] < 0) {
              EXPECT_EQ(std::count(batch.labels.begin() + 3 * row, batch.labels.begin() + 3 * row + 3,
                                   kIgnoredLabel),
                        3);
              EXPECT_THAT(
                  std::vector(batch.positions.begin() + 3 * row, batch.positions.begin() + 3 * row + 3),
                  ElementsAre(0, 1, 2));
            }
        }
    }
    EXPECT_EQ(targets.size(), 15u);
    for (const auto& [label, times] : targets) EXPECT_EQ(times, 1) << label;
  }
}

TEST(Sampler, BadSizesAndTheEndAreNamed) {
  const TemporaryFolder folder;
  const auto source = counting_samples(folder, 5, 3);
  const auto made = [&](SamplerConfig config) { return input_error_of([&] { Sampler(source, config); }); };
  EXPECT_THAT(made({.micro_batch_size = 4, .global_batch_size = 10}),
              HasSubstr("global_batch_size 10 cannot be shared"));
  EXPECT_THAT(made({.micro_batch_size = 2, .global_batch_size = 2, .ranks = 2}),
              HasSubstr("2 data-parallel ranks"));
  EXPECT_THAT(made({.micro_batch_size = 0, .global_batch_size = 4}), HasSubstr("at least 1"));
  EXPECT_THAT(made({.micro_batch_size = int64_t{1} << 40, .global_batch_size = int64_t{1} << 40}),
              HasSubstr("2^31"));
  EXPECT_THAT(made({.micro_batch_size = int64_t{1} << 62, .global_batch_size = int64_t{1} << 62, .ranks = 4}),
              HasSubstr("shared out"));
  const Sampler sampler(source, {.micro_batch_size = 2, .global_batch_size = 4});
  Batch batch;
  sampler.fetch(0, 1, batch);
  EXPECT_THAT(input_error_of([&] { sampler.fetch(4, 0, batch); }),
              HasSubstr("sample 5 is wanted, but the dataset has 5"));
}

TEST(Sampler, ResumeWithAnotherOrderIsRefused) {
  const TemporaryFolder folder;
  const auto dataset = counting_dataset(folder, "d", {30, 20, 10});
  const auto sampler = [&](uint32_t seed, int64_t samples) {
    GptDatasetConfig config;
    config.sequence_length = 4;
    config.seed = seed;
    config.num_samples = samples;
    return Sampler(std::make_shared<const GptDataset>(dataset, SequenceRange{0, 3}, config), {});
  };
  const LoaderState saved = sampler(1, 10).state(7);
  EXPECT_EQ(saved.consumed_samples, 7);
  sampler(1, 10).check_resume(saved);
  sampler(1, 14).check_resume(saved);  // still one epoch: the order goes on as it was
  EXPECT_THAT(input_error_of([&] { sampler(2, 10).check_resume(saved); }), HasSubstr("order of samples"));
  EXPECT_THAT(input_error_of([&] { sampler(1, 16).check_resume(saved); }), HasSubstr("number of samples"));
}

TEST(Cases, ResumeWithAccumulationRepeatsNoData) {
  const TemporaryFolder folder;
  const auto source = counting_samples(folder, 48, 2);
  // Accumulation 4, saved after two updates.
  const SamplerConfig one{.micro_batch_size = 1, .global_batch_size = 4};
  EXPECT_THAT(read_by_all(source, one, Sampler(source, one).state(2 * 4).consumed_samples),
              ElementsAre(8, 9, 10, 11));
  const SamplerConfig two{.micro_batch_size = 1, .global_batch_size = 8, .ranks = 2};
  const LoaderState saved = Sampler(source, two).state(2 * 8);
  EXPECT_EQ(read_by_all(source, two, saved.consumed_samples), count_from(16, 8));
  // The same checkpoint on one rank, accumulation 8.
  const SamplerConfig again{.micro_batch_size = 1, .global_batch_size = 8};
  Sampler(source, again).check_resume(saved);
  EXPECT_EQ(read_by_all(source, again, saved.consumed_samples), count_from(16, 8));
}

}  // namespace
}  // namespace trainer
