// What train_step counts, against counts by hand, and that counting changes nothing.
#include <gtest/gtest.h>

#include <cstring>
#include <optional>

#include "base/error.h"
#include "comm/in_process.h"
#include "ops/memory_rate.h"
#include "support/backend.h"
#include "support/kernel_meter.h"
#include "support/models.h"
#include "support/tiny_models.h"
#include "train_step/arguments.h"
#include "train_step/breakdown.h"
#include "train_step/grid.h"

namespace trainer {
namespace {

constexpr int64_t kTokens = 32;  // of a micro-batch, of which a step has two

Config step_config() {
  Config config;
  config.device.threads = 1;
  config.precision.compute = DType::kBF16;
  config.data.sequence_length = kTokens;
  config.training.global_batch_size = 2;
  config.training.micro_batch_size = 1;
  config.training.steps = 3;
  config.optimizer.lr = 1e-2;
  config.optimizer.lr_decay_steps = 3;
  return config;
}

// All parameters after two steps; the second one is recorded.
std::vector<float> train(const ModelConfig& model, const std::string& backend, KernelRecord* record) {
  Config config = step_config();
  resolve_parallel(config, model, 1);
  const auto world = make_in_process_group(1);
  RankBackend parts = make_training_backend(backend, config, *world.front());
  if (record) parts.kernels = make_metered_kernels(std::move(parts.kernels), *record);
  RandomInputs inputs(config, model.vocabulary_size);
  TrainingRank rank(config, model, std::move(parts), *world.front(), nullptr, nullptr, &inputs);
  rank.allocate();
  rank.initialize_random();
  rank.run(1, 1, nullptr);
  if (record) record->on = true;
  rank.run(2, 1, nullptr);
  if (record) record->on = false;
  std::vector<float> all;
  for (int l = 0; l < rank.model().layer_count(); ++l)
    for (const ParameterSpec& p : rank.model().layer(l).parameters()) {
      const auto values = rank.parameter_values(p.name);
      EXPECT_TRUE(values) << p.name;
      if (values) all.insert(all.end(), values->begin(), values->end());
    }
  return all;
}

// tiny-llama: hidden 64, two blocks, queries 64 wide, keys and values 32, feed-forward 128, 257 words, tied.
// Blocks run twice for each of two micro-batches, so most things come in fours.
TEST(KernelMeter, CountsAStepAsByHand) {
  const ModelConfig& model = tiny_models()[1].shape;
  KernelRecord record;
  const int64_t parameters = static_cast<int64_t>(train(model, "host", &record).size());
  ASSERT_EQ(parameters, 257 * 64 + 2 * (36864 + 2 * 64) + 64);
  const auto expect = [&](Kernel kernel, int64_t calls, int64_t flops, int64_t bytes) {
    const KernelSum& sum = record[kernel];
    EXPECT_EQ(sum.calls, calls) << name_of(kernel);
    EXPECT_EQ(sum.work.flops, static_cast<double>(flops)) << name_of(kernel);
    EXPECT_EQ(sum.work.bytes, static_cast<double>(bytes)) << name_of(kernel);
    EXPECT_EQ(sum.seconds > 0, calls > 0) << name_of(kernel);
  };
  // Products [tokens, output, input]: 32 x 128 x 64, 32 x 64 x 64, 32 x 256 x 64, 32 x 64 x 128. Operands and
  // results of them are 2 bytes, gradients of weights 4: written by the first of two micro-batches, read and
  // written by the other.
  const int64_t products = 2 * 32 * (128 * 64 + 64 * 64 + 256 * 64 + 64 * 128);
  const int64_t narrow = 2 * (32 * 64 + 128 * 64 + 32 * 128) + 2 * (32 * 64 + 64 * 64 + 32 * 64) +
                         2 * (32 * 64 + 256 * 64 + 32 * 256) + 2 * (32 * 128 + 64 * 128 + 32 * 64);
  expect(Kernel::kLinearForward, 16, 4 * products, 4 * narrow);
  expect(Kernel::kLinearBackwardInput, 16, 4 * products, 4 * narrow);
  expect(Kernel::kLinearBackwardWeight, 16, 4 * products, 4 * narrow + 2 * (2 + 6) * 36864);
  expect(Kernel::kBiasBackward, 0, 0, 0);
  // Two products, and four, of half of 32 x 32 pairs; queries are 4096 bytes, keys 2048, sums 512, gradients
  // of keys and values 4096 each, read and written.
  expect(Kernel::kAttentionForward, 4, 4 * 2 * 2 * 512 * 64, 4 * (2 * 4096 + 2 * 2048 + 512));
  expect(Kernel::kAttentionBackward, 4, 4 * 4 * 2 * 512 * 64, 4 * (4 * 4096 + 2 * 2048 + 512 + 2 * 2 * 4096));
  // x, its gradient, weights of 2 bytes and their gradient, labels, losses.
  expect(Kernel::kClassifier, 2, 2 * 3 * 2 * 32 * 257 * 64,
         2 * (2 * 4096 + 257 * 64 * 2 + 128) + 257 * 64 * (4 + 8));
  // Two norms a block and one of the head; those of blocks are made again by the backward pass.
  expect(Kernel::kNormForward, 18, 0, 18 * (2 * 4096 + 64 * 2 + 32 * 4));
  const int64_t norm_backward = 3 * 4096 + 64 * 2 + 32 * 4 + 64 * 8;
  expect(Kernel::kNormBackward, 10, 0, 10 * norm_backward + 8 * 4096);
  // Queries, keys; positions and 16 numbers of the tables a token. Gradients of keys come in 4 bytes.
  expect(Kernel::kRopeForward, 8, 0, 4 * (2 * 4096 + 2 * 2048) + 8 * 32 * (4 + 16 * 4));
  expect(Kernel::kRopeBackward, 8, 0, 4 * (2 * 4096 + 4096 + 2048) + 8 * 32 * (4 + 16 * 4));
  expect(Kernel::kActivationForward, 8, 0, 8 * 3 * 32 * 128 * 2);
  expect(Kernel::kActivationBackward, 4, 0, 4 * 5 * 32 * 128 * 2);
  expect(Kernel::kEmbeddingForward, 2, 0, 2 * (2 * 4096 + 128));
  expect(Kernel::kEmbeddingBackward, 2, 0, 2 * (4096 + 2 * 32 * 64 * 4 + 128));
  // Residual sums, and the embedding's two gradients.
  expect(Kernel::kAdd, 9, 0, 8 * 3 * 4096 + 12 * 257 * 64);
  // Values and their gradient; weights of 2 bytes from those of 4.
  expect(Kernel::kConvert, 4 + 4 + 4, 0, 4 * 2 * 2048 + 4 * (4096 + 2048) + 6 * parameters);
  // One for each tensor of the model folder: nine of a block.
  expect(Kernel::kAdamW, 1 + 2 * 9 + 1, 0, 28 * parameters);
  EXPECT_EQ(record[Kernel::kBlockSquares].work.bytes,
            static_cast<double>(4 * parameters + 8 * record[Kernel::kBlockSquares].calls));

  double bytes = 0;
  for (const Kernel kernel :
       {Kernel::kNormBackward, Kernel::kRopeForward, Kernel::kRopeBackward, Kernel::kActivationBackward,
        Kernel::kEmbeddingForward, Kernel::kEmbeddingBackward, Kernel::kAdd, Kernel::kConvert, Kernel::kAdamW,
        Kernel::kBlockSquares})
    bytes += record[kernel].work.bytes;
  const KernelWork necessary = necessary_work(record);
  EXPECT_EQ(necessary.flops,
            static_cast<double>(2 * (2 * 3 * products + 2 * 6 * 2 * 512 * 64 + 3 * 2 * 32 * 257 * 64)));
  EXPECT_EQ(necessary.bytes, bytes + 10 * (2 * 4096 + 64 * 2 + 32 * 4) + 4 * 3 * 32 * 128 * 2);
}

class MeteredTraining : public ::testing::TestWithParam<Architecture> {};

TEST_P(MeteredTraining, LearnsTheSameBits) {
  const ModelConfig model = tiny_model(GetParam());
  for (const std::string backend : {"host", "simt"}) {
    KernelRecord record;
    const std::vector<float> plain = train(model, backend, nullptr), metered = train(model, backend, &record);
    ASSERT_EQ(metered.size(), plain.size());
    EXPECT_EQ(std::memcmp(metered.data(), plain.data(), plain.size() * sizeof(float)), 0) << backend;
    // Nothing that the model need not do, and nothing left out.
    EXPECT_NEAR(necessary_work(record).flops,
                Model(model, kTokens).flops_per_token(kTokens) * static_cast<double>(2 * kTokens), 1e-3);
  }
}

INSTANTIATE_TEST_SUITE_P(Of, MeteredTraining,
                         ::testing::Values(Architecture::kGpt2, Architecture::kLlama, Architecture::kQwen2,
                                           Architecture::kQwen3),
                         [](const auto& info) { return std::to_string(info.index); });

TEST(IdealPipeline, FillsAndDrainsWithTheOtherStages) {
  const auto busy = [](double seconds) {
    TimelineEvent computes, sends;
    computes.lane = "compute";
    computes.end = seconds;
    sends.lane = "send";
    sends.end = 100;
    return std::vector<TimelineEvent>{computes, sends};
  };
  EXPECT_DOUBLE_EQ(ideal_pipeline({busy(1), busy(1)}, 4), 4.0 / 5);
  // Of 4 micro-batches of 2 seconds and one of 1 that fills and drains, 6 are the mean's.
  EXPECT_DOUBLE_EQ(ideal_pipeline({busy(8), busy(4)}, 4), 6.0 / 9);
}

TEST(KernelMeter, CreditsNothingTwice) {
  KernelRecord record;
  record.add(Kernel::kActivationForward, {.calls = 8, .work = {0, 800}});
  record.add(Kernel::kActivationBackward, {.calls = 4, .work = {0, 1000}});
  record.add(Kernel::kLinearForward, {.calls = 3, .work = {60, 7}});
  record.add(Kernel::kLinearBackwardWeight, {.calls = 2, .work = {40, 7}});
  record.add(Kernel::kFillZero, {.calls = 1, .work = {0, 500}});
  const KernelWork work = necessary_work(record);
  EXPECT_EQ(work.flops, 80);
  EXPECT_EQ(work.bytes, 1400);
}

TEST(MemoryRate, CountsWhatAnAdditionMoves) {
  KernelRecord record;
  record.on = true;
  const auto kernels = make_metered_kernels(make_host_kernels(1), record);
  const auto memory = host_device().allocate(2 << 20);
  const double rate = measure_memory_rate(*kernels, memory->bytes());
  const KernelSum& sum = record[Kernel::kAdd];
  EXPECT_GE(sum.calls, 5);
  EXPECT_EQ(sum.work.bytes, static_cast<double>(sum.calls * 3 * (1 << 20)));
  // Repeats and rounds apart, the rate is the bytes by the seconds of a call.
  EXPECT_GT(rate * sum.seconds, 0.1 * sum.work.bytes);
}

TEST(KernelBreakdown, IsOfAStepTheLongestFirst) {
  KernelRecord record;
  record.add(Kernel::kAdd, {.calls = 4, .seconds = 2, .work = {0, 4000}});
  record.add(Kernel::kClassifier, {.calls = 2, .seconds = 4, .work = {8000, 900}});
  const Json rows = kernel_breakdown(record, {.products = 8000, .memory = 4000}, 2, 1);
  ASSERT_EQ(rows.size(), 2);
  const Json classifier = {{"kernel", "classifier"}, {"calls", 1},     {"seconds", 2.0},
                           {"flops", 4000.0},        {"bytes", 450.0}, {"ratio", 0.25}};
  EXPECT_EQ(rows[0], classifier);
  EXPECT_EQ(rows[1]["kernel"], "add");
  EXPECT_EQ(rows[1]["ratio"], 0.5);
  // Two ranks at once: each took half of the seconds.
  EXPECT_EQ(kernel_breakdown(record, {.products = 8000, .memory = 4000}, 2, 2)[0]["seconds"], 1.0);
}

TEST(TrainStepArguments, GiveAPublishedModelTheSequencesPositions) {
  const auto positions = [](const std::string& model, const std::string& sequence) {
    return parse_train_step({"--model", model, "--sequence", sequence}).model.max_position_embeddings;
  };
  EXPECT_EQ(positions("gpt2-124m", "256"), 1024);
  EXPECT_EQ(positions("gpt2-124m", "4096"), 4096);
  EXPECT_EQ(positions("llama-110m", "8192"), 4096) << "it learns none";
  EXPECT_THROW(positions("gpt2-125m", "256"), InputError);
}

}  // namespace
}  // namespace trainer
