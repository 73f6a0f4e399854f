// What must hold of a model's forward, recover and backward, whichever kernels run them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ostream>

#include "base/philox.h"
#include "support/formula_weights.h"
#include "support/model_runner.h"
#include "support/tiny_models.h"

namespace trainer {
namespace {

struct Case {
  Architecture architecture;
  bool host;
  DType dtype;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << name_of(c.architecture) << (c.host ? "_host_" : "_reference_") << name_of(c.dtype);
}

std::unique_ptr<KernelSet> make_kernels(bool host) {
  return host ? make_host_kernels(1) : make_reference_kernels();
}

TestBatch random_batch(int64_t micro_batch, int64_t sequence, int64_t vocabulary, uint64_t seed = 5) {
  const Philox random(seed);
  std::vector<int32_t> tokens, labels;
  for (int64_t t = 0; t < micro_batch * sequence; ++t) {
    const auto words = random.block(static_cast<uint64_t>(t));
    tokens.push_back(static_cast<int32_t>(words[0] % static_cast<uint32_t>(vocabulary)));
    labels.push_back(words[2] % 5 == 0 ? -100
                                       : static_cast<int32_t>(words[1] % static_cast<uint32_t>(vocabulary)));
  }
  return make_batch(micro_batch, sequence, std::move(tokens), std::move(labels));
}

class Passes : public ::testing::TestWithParam<Case> {
 protected:
  ModelRunner make_runner() const {
    ModelRunner runner(tiny_model(GetParam().architecture), make_kernels(GetParam().host), GetParam().dtype);
    runner.set_weights(formula_weights);
    return runner;
  }
  int saved_count() const { return GetParam().architecture == Architecture::kQwen3 ? 8 : 7; }
};

void expect_same_bits(const RunResult& a, const RunResult& b) {
  EXPECT_EQ(a.loss_sum, b.loss_sum);
  EXPECT_EQ(a.valid_tokens, b.valid_tokens);
  EXPECT_EQ(a.token_losses, b.token_losses);
  ASSERT_EQ(a.gradients.size(), b.gradients.size());
  for (const auto& [name, gradient] : a.gradients) EXPECT_EQ(gradient, b.gradients.at(name)) << name;
}

// Padding is part of what is summed over ranks and squared: it must be zeros, too.
TEST_P(Passes, FirstGradientsAreWrittenAsIfToZeros) {
  ModelRunner runner = make_runner();
  const TestBatch batch = random_batch(2, 13, 37);
  for (const std::vector<int64_t>& segments : {std::vector<int64_t>{}, {4, 9}}) {
    const RunResult added = runner.run(batch, {.segments = segments});
    std::vector<std::vector<float>> blocks;
    for (int i = 0; i < runner.model().layer_count(); ++i) blocks.push_back(runner.gradient_block(i));
    expect_same_bits(runner.run(batch, {.segments = segments, .written = true}), added);
    for (int i = 0; i < runner.model().layer_count(); ++i)
      EXPECT_EQ(runner.gradient_block(i), blocks[static_cast<size_t>(i)]) << "layer " << i;
  }
}

TEST_P(Passes, RecoveryGivesTheSameBits) {
  ModelRunner runner = make_runner();
  const TestBatch batch = random_batch(2, 13, 37);
  const RunResult full = runner.run(batch);
  EXPECT_TRUE(std::isfinite(full.loss_sum) && full.loss_sum > 0);
  const auto saved = runner.saved_bytes();
  const uint64_t all = (uint64_t{1} << saved_count()) - 1;
  std::vector<uint64_t> masks{0, all};
  for (int i = 0; i < saved_count(); ++i) {
    masks.push_back(uint64_t{1} << i);
    masks.push_back(all & ~(uint64_t{1} << i));
  }
  for (const uint64_t kept : masks) {
    SCOPED_TRACE(kept);
    expect_same_bits(runner.run(batch, {.recover = true, .kept = kept}), full);
    EXPECT_EQ(runner.saved_bytes(), saved);
  }
}

TEST_P(Passes, EvaluationGivesTheSameLosses) {
  ModelRunner runner = make_runner();
  const TestBatch batch = random_batch(2, 13, 37);
  const RunResult train = runner.run(batch);
  const RunResult evaluation = runner.run(batch, {.recover = true, .backward = false});
  EXPECT_EQ(evaluation.token_losses, train.token_losses);
  EXPECT_EQ(evaluation.loss_sum, train.loss_sum);
}

TEST_P(Passes, GradientMayReplaceTheOneItComesFrom) {
  ModelRunner runner = make_runner();
  const TestBatch batch = random_batch(1, 13, 37);
  const RunResult apart = runner.run(batch);
  expect_same_bits(runner.run(batch, {.in_place = true}), apart);
}

TEST_P(Passes, SegmentsEqualTheWholeSequence) {
  ModelRunner runner = make_runner();
  TestBatch batch = random_batch(2, 13, 37);
  const double tolerance = GetParam().dtype == DType::kF32 ? 2e-5 : 0.06;
  const RunResult whole = runner.run(batch);
  for (const std::vector<int64_t>& segments : std::vector<std::vector<int64_t>>{{13}, {6, 7}, {1, 4, 8}}) {
    SCOPED_TRACE(segments.size());
    const RunResult cut = runner.run(batch, {.segments = segments});
    expect_close(cut, whole, tolerance);
    expect_same_bits(runner.run(batch, {.segments = segments, .recover = true}), cut);
  }
  batch.document_starts = {0, 4, 13, 20};
  const RunResult packed = runner.run(batch);
  EXPECT_NE(packed.loss_sum, whole.loss_sum);
  expect_close(runner.run(batch, {.segments = {6, 7}}), packed, tolerance);
}

// Document 1 is replaced; document 2's losses keep their bits, and equal its losses alone.
TEST_P(Passes, PackedDocumentsDoNotSeeEachOther) {
  ModelRunner runner = make_runner();
  const int64_t first = 5, second = 8;
  TestBatch batch = random_batch(1, first + second, 37);
  for (int64_t t = first; t < first + second; ++t)
    batch.positions[static_cast<size_t>(t)] = static_cast<int32_t>(t - first);
  batch.document_starts = {0, static_cast<int32_t>(first)};
  TestBatch other = batch;
  for (int64_t t = 0; t < first; ++t)
    other.tokens[static_cast<size_t>(t)] = (batch.tokens[static_cast<size_t>(t)] + 3) % 37;
  const auto second_losses = [&](const RunResult& result) {
    return std::vector<float>(result.token_losses.begin() + first, result.token_losses.end());
  };

  for (const bool recover : {false, true}) {
    const RunResult a = runner.run(batch, {.recover = recover}), b = runner.run(other, {.recover = recover});
    EXPECT_NE(a.token_losses, b.token_losses);
    EXPECT_EQ(second_losses(a), second_losses(b));
  }

  const auto losses = second_losses(runner.run(batch));
  const auto tail = [&](const std::vector<int32_t>& v) {
    return std::vector<int32_t>(v.begin() + first, v.end());
  };
  const RunResult alone = runner.run(make_batch(1, second, tail(batch.tokens), tail(batch.labels)));
  const double tolerance = GetParam().dtype == DType::kF32 ? 1e-5 : 0.05;
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], alone.token_losses[i], tolerance) << i;

  TestBatch leaking = batch;
  leaking.document_starts.clear();
  EXPECT_NE(second_losses(runner.run(leaking)), losses);
}

// The sum over a batch is the sum over its rows: nothing is divided by a micro-batch's own count.
TEST_P(Passes, SumsDoNotDependOnTheMicroBatch) {
  ModelRunner runner = make_runner();
  TestBatch batch = random_batch(3, 9, 37);
  std::fill(batch.labels.begin() + 9, batch.labels.begin() + 17, -100);  // row 1 keeps one label
  std::fill(batch.labels.begin() + 18, batch.labels.end(), -100);        // row 2 has none
  batch.labels[17] = 1;
  RunResult sum;
  for (int64_t row = 0; row < 3; ++row) {
    const auto cut = [&](const std::vector<int32_t>& v) {
      return std::vector<int32_t>(v.begin() + row * 9, v.begin() + row * 9 + 9);
    };
    const RunResult part = runner.run(make_batch(1, 9, cut(batch.tokens), cut(batch.labels)));
    sum.loss_sum += part.loss_sum;
    sum.valid_tokens += part.valid_tokens;
    for (const auto& [name, gradient] : part.gradients) {
      auto& to = sum.gradients[name];
      to.resize(gradient.size());
      for (size_t i = 0; i < gradient.size(); ++i) to[i] += gradient[i];
    }
    if (row == 2) {
      EXPECT_EQ(part.loss_sum, 0);
      for (const auto& [name, gradient] : part.gradients)
        for (const float g : gradient) ASSERT_EQ(g, 0) << name;
    }
  }
  expect_close(runner.run(batch), sum, GetParam().dtype == DType::kF32 ? 1e-5 : 0.02);
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const auto architecture :
       {Architecture::kLlama, Architecture::kQwen2, Architecture::kQwen3, Architecture::kGpt2})
    for (const bool host : {false, true})
      for (const DType dtype : {DType::kF32, DType::kBF16}) cases.push_back({architecture, host, dtype});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Models, Passes, ::testing::ValuesIn(all_cases()),
                         ::testing::PrintToStringParamName());

// Central differences of the loss through the whole model. The loss is summed in double, but activations are
// rounded to single precision, so the step is large and its error, of third order, small beside the
// tolerance.
TEST(FiniteDifferences, OfTheWholeModel) {
  for (const auto architecture :
       {Architecture::kLlama, Architecture::kQwen2, Architecture::kQwen3, Architecture::kGpt2}) {
    ModelRunner runner(tiny_model(architecture), make_reference_kernels(), DType::kF32);
    runner.set_weights(formula_weights);
    const TestBatch batch = random_batch(1, 7, 37);
    const RunResult result = runner.run(batch);
    const RunOptions loss_only{.recover = true, .backward = false};
    for (const auto& [name, gradient] : result.gradients) {
      float largest = 0;
      for (const float g : gradient) largest = std::max(largest, std::abs(g));
      // The element of the largest gradient, and two others.
      const size_t peak = static_cast<size_t>(
          std::ranges::max_element(gradient, {}, [](float g) { return std::abs(g); }) - gradient.begin());
      for (const size_t i : {peak, gradient.size() / 3, gradient.size() - 1}) {
        float& weight = runner.weight(name)[i];
        const float before = weight, step = 4e-3f;
        weight = before + step;
        const double up = runner.run(batch, loss_only).loss_sum, high = weight;
        weight = before - step;
        const double down = runner.run(batch, loss_only).loss_sum, low = weight;
        weight = before;
        EXPECT_NEAR((up - down) / (high - low), gradient[i], 2e-3 * largest + 5e-4)
            << name << "[" << i << "]";
      }
    }
  }
}

// A bigram model, logits = W[token], as a classifier of one-hot rows. Gradients of the sum over two
// micro-batches of 4 and 1 valid labels, divided by the 5 of both.
TEST(Cases, GradientsOfMicroBatchesWithUnequalLabels) {
  for (const bool host : {false, true}) {
    const auto kernels = make_kernels(host);
    GuardedBuffer workspace(static_cast<int64_t>(kernels->workspace_bytes({.dtype = DType::kF32,
                                                                           .tokens = 4,
                                                                           .widest_row = 3,
                                                                           .hidden = 3,
                                                                           .vocabulary = 3,
                                                                           .sequence = 4,
                                                                           .heads = 1})));
    kernels->grant_workspace(workspace.bytes());
    const std::vector<float> weight(9, 0.0f);
    std::vector<float> dweight(9, 0.0f);
    double loss_sum = 0;
    int64_t valid = 0;
    struct MicroBatch {
      std::vector<int> tokens;
      std::vector<int32_t> labels;
    };
    for (const MicroBatch& m :
         {MicroBatch{{0, 1, 2, 0}, {1, 2, 0, 1}}, MicroBatch{{2, 2, 2, 2}, {-100, -100, -100, 1}}}) {
      std::vector<float> one_hot(12, 0.0f), dx(12);
      for (size_t t = 0; t < 4; ++t) one_hot[t * 3 + static_cast<size_t>(m.tokens[t])] = 1;
      const ClassifierResult result =
          kernels->classifier({.tokens = 4,
                               .hidden = 3,
                               .vocabulary = 3,
                               .x = ref(static_cast<const float*>(one_hot.data())),
                               .weight = ref(weight.data()),
                               .labels = m.labels.data(),
                               .dx = ref(dx.data()),
                               .dweight = dweight.data(),
                               .token_losses = nullptr});
      loss_sum += result.loss_sum;
      valid += result.valid_tokens;
    }
    ASSERT_EQ(valid, 5);
    EXPECT_NEAR(loss_sum / 5, std::log(3.0), 1e-6);
    // [vocabulary, token]: the transpose of W's gradient.
    const double expected[] = {2, 1, -1, -4, 1, -1, 2, -2, 2};
    for (size_t i = 0; i < 9; ++i)
      EXPECT_NEAR(dweight[i] / 5, expected[i] / 15, 1e-6) << i << kernels->name();
  }
}

TEST(Frozen, LayersPassGradientsOnAndAddNone) {
  const ModelConfig config = tiny_model(Architecture::kLlama);
  const auto kernels = make_reference_kernels();
  const Model model(config);
  const Layer& layer = model.layer(1);
  const LayerCatalogue catalogue = layer.catalogue(1, 6, DType::kF32);
  GuardedBuffer weights(layer.block_size() * 4), temporary(catalogue.temporary_bytes),
      x(catalogue.output_bytes);
  GuardedBuffer y(catalogue.output_bytes), dy(catalogue.output_bytes), dx(catalogue.output_bytes);
  GuardedBuffer dx_frozen(catalogue.output_bytes), gradients(layer.block_size() * 4);
  weights.zero();
  gradients.zero();
  for (const auto& spec : layer.parameters())
    formula_weights(spec, {weights.f32() + spec.offset, static_cast<size_t>(spec.count())});
  for (size_t i = 0; i < x.size() / 4; ++i) {
    x.f32()[i] = formula_uniform("x", static_cast<int64_t>(i));
    dy.f32()[i] = formula_uniform("dy", static_cast<int64_t>(i));
  }
  std::vector<GuardedBuffer> memory;
  std::vector<Ref> saved;
  for (const auto& tensor : catalogue.saved) {
    memory.emplace_back(tensor.bytes);
    saved.push_back(memory.back().as(DType::kF32));
  }
  const std::vector<int32_t> positions{0, 1, 2, 3, 4, 5};
  LayerCall call{
      .kernels = *kernels,
      .batch = {.micro_batch = 1, .sequence = 6, .positions = positions.data(), .document_starts = {}},
      .weights = weights.as(DType::kF32),
      .shared_weights = {},
      .gradients = gradients.f32(),
      .saved = saved,
      .temporary = temporary.bytes()};
  layer.forward(call, x.as(DType::kF32), y.as(DType::kF32));
  layer.backward(call, x.as(DType::kF32), dy.as(DType::kF32), dx.as(DType::kF32));
  call.gradients = nullptr;
  temporary.spoil();
  layer.backward(call, x.as(DType::kF32), dy.as(DType::kF32), dx_frozen.as(DType::kF32));
  EXPECT_TRUE(std::ranges::equal(dx.bytes(), dx_frozen.bytes()));
}

TEST(Embedding, RefusesTokensOutsideTheVocabulary) {
  ModelRunner runner(tiny_model(Architecture::kLlama), make_reference_kernels(), DType::kF32);
  TestBatch batch = random_batch(2, 5, 37);
  batch.tokens[7] = 37;
  try {
    runner.run(batch);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(),
                 "token 37 at row 1, column 2 of a micro-batch is outside the model's vocabulary of 37: the "
                 "dataset was "
                 "made with another tokenizer than the model's");
  }
  batch.tokens[7] = -1;
  EXPECT_THROW(runner.run(batch), InputError);
}

TEST(Embedding, RefusesPositionsPastTheLearnedOnes) {
  ModelRunner runner(tiny_model(Architecture::kGpt2), make_reference_kernels(), DType::kF32);
  TestBatch batch = random_batch(1, 5, 37);
  batch.positions[4] = 64;
  EXPECT_THROW(runner.run(batch), InputError);
}

}  // namespace
}  // namespace trainer
