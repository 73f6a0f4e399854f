// A model cut over a tensor-parallel group computes what the whole model does.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "base/philox.h"
#include "model/tensor_part.h"
#include "support/formula_weights.h"
#include "support/model_runner.h"
#include "support/tensor_threads.h"
#include "support/tiny_models.h"

namespace trainer {
namespace {

// Four key/value heads, and a vocabulary that 2 and 4 do not divide.
ModelConfig shape(Architecture architecture, bool tied) {
  ModelConfig config = tiny_model(architecture);
  config.tie_word_embeddings = tied;
  config.num_attention_heads = 8;
  config.num_query_groups = architecture == Architecture::kGpt2 ? 8 : 4;
  if (architecture == Architecture::kGpt2) config.hidden_size = 8 * config.head_dim;
  if (architecture == Architecture::kLlama) config.qkv_bias = config.output_bias = config.mlp_bias = true;
  return config;
}

TestBatch some_batch(int64_t vocabulary) {
  const Philox random(11);
  std::vector<int32_t> tokens, labels;
  for (uint64_t t = 0; t < 24; ++t) {
    const auto words = random.block(t);
    tokens.push_back(static_cast<int32_t>(words[0] % static_cast<uint32_t>(vocabulary)));
    labels.push_back(words[2] % 5 == 0 ? -100
                                       : static_cast<int32_t>(words[1] % static_cast<uint32_t>(vocabulary)));
  }
  return make_batch(2, 12, std::move(tokens), std::move(labels));
}

struct Whole {
  RunResult result;
  std::vector<RunResult> ranks;
};

// Runs on all ranks and puts their gradients together. Replicated ones must have the same bits on all.
Whole run_cut(const ModelConfig& config, int size, bool sequence, bool host, DType dtype,
              const TestBatch& batch, const RunOptions& options, TensorThreads& threads) {
  Whole whole;
  whole.ranks.resize(static_cast<size_t>(size));
  std::vector<std::vector<ParameterSpec>> specs(static_cast<size_t>(size));
  threads.run([&](TensorGroup& group) {
    const auto r = static_cast<size_t>(group.rank());
    ModelRunner runner(config, host ? make_host_kernels(1) : make_reference_kernels(), dtype, &group,
                       sequence);
    runner.set_weights(formula_weights);
    whole.ranks[r] = runner.run(batch, options);
    for (int i = 0; i < runner.model().layer_count(); ++i)
      for (const auto& spec : runner.model().layer(i).parameters()) specs[r].push_back(spec);
  });
  whole.result = whole.ranks.front();
  for (size_t r = 0; r < specs.size(); ++r) {
    EXPECT_EQ(whole.ranks[r].loss_sum, whole.result.loss_sum);
    EXPECT_EQ(whole.ranks[r].token_losses, whole.result.token_losses);
    if (!options.backward) continue;
    for (const ParameterSpec& spec : specs[r]) {
      const std::vector<float>& part = whole.ranks[r].gradients.at(spec.name);
      std::vector<float>& all = whole.result.gradients[spec.name];
      if (spec.replicated()) {
        EXPECT_EQ(part, all) << spec.name << " on rank " << r;
        continue;
      }
      if (r == 0) all.assign(static_cast<size_t>(spec.logical_count()), std::nanf(""));
      for_each_held_run(spec, [&](int64_t to, int64_t from, int64_t count) {
        std::copy_n(part.begin() + from, count, all.begin() + to);
      });
    }
  }
  return whole;
}

class TensorParallel : public ::testing::TestWithParam<Architecture> {};

TEST_P(TensorParallel, LossesAndGradientsAreThoseOfTheWholeModel) {
  for (const bool tied : {false, true}) {
    const ModelConfig config = shape(GetParam(), tied);
    const TestBatch batch = some_batch(config.vocabulary_size);
    for (const bool host : {false, true}) {
      ModelRunner runner(config, host ? make_host_kernels(1) : make_reference_kernels(), DType::kF32);
      runner.set_weights(formula_weights);
      const RunResult expected = runner.run(batch);
      for (const int size : {2, 4})
        for (const bool sequence : {false, true}) {
          SCOPED_TRACE(fmt::format("tied {} host {} size {} sequence {}", tied, host, size, sequence));
          TensorThreads threads(size);
          expect_close(run_cut(config, size, sequence, host, DType::kF32, batch, {}, threads).result,
                       expected, 2e-5);
        }
    }
  }
}

// What other ranks have more of is zeros.
TEST_P(TensorParallel, FirstGradientsAreWrittenAsIfToZeros) {
  for (const bool tied : {false, true})
    for (const bool sequence : {false, true}) {
      const ModelConfig config = shape(GetParam(), tied);
      const TestBatch batch = some_batch(config.vocabulary_size);
      TensorThreads threads(4);
      threads.run([&](TensorGroup& group) {
        ModelRunner runner(config, make_host_kernels(1), DType::kF32, &group, sequence);
        runner.set_weights(formula_weights);
        runner.run(batch);
        std::vector<std::vector<float>> added;
        for (int i = 0; i < runner.model().layer_count(); ++i) added.push_back(runner.gradient_block(i));
        runner.run(batch, {.written = true});
        for (int i = 0; i < runner.model().layer_count(); ++i)
          EXPECT_EQ(runner.gradient_block(i), added[static_cast<size_t>(i)])
              << "layer " << i << " of rank " << group.rank() << ", tied " << tied;
      });
    }
}

TEST_P(TensorParallel, InBf16ToItsPrecision) {
  const ModelConfig config = shape(GetParam(), true);
  const TestBatch batch = some_batch(config.vocabulary_size);
  ModelRunner runner(config, make_host_kernels(1), DType::kBF16);
  runner.set_weights(formula_weights);
  const RunResult expected = runner.run(batch);
  for (const bool sequence : {false, true}) {
    TensorThreads threads(2);
    expect_close(run_cut(config, 2, sequence, true, DType::kBF16, batch, {}, threads).result, expected, 0.06);
  }
}

void expect_same_bits(const Whole& a, const Whole& b) {
  for (size_t r = 0; r < a.ranks.size(); ++r) {
    EXPECT_EQ(a.ranks[r].loss_sum, b.ranks[r].loss_sum);
    for (const auto& [name, gradient] : a.ranks[r].gradients)
      EXPECT_EQ(gradient, b.ranks[r].gradients.at(name)) << name;
  }
}

TEST_P(TensorParallel, RecoveryEvaluationAndGradientsInPlaceChangeNothing) {
  const ModelConfig config = shape(GetParam(), false);
  const TestBatch batch = some_batch(config.vocabulary_size);
  for (const bool sequence : {false, true}) {
    TensorThreads threads(2);
    const auto run = [&](const RunOptions& options) {
      return run_cut(config, 2, sequence, true, DType::kF32, batch, options, threads);
    };
    const Whole full = run({});
    expect_same_bits(run({.recover = true}), full);
    expect_same_bits(run({.recover = true, .kept = 0b1010101}), full);
    expect_same_bits(run({.in_place = true}), full);
    EXPECT_EQ(run({.recover = true, .backward = false}).result.loss_sum, full.result.loss_sum);
  }
}

TEST_P(TensorParallel, SegmentsEqualTheWholeSequence) {
  const ModelConfig config = shape(GetParam(), false);
  const TestBatch batch = some_batch(config.vocabulary_size);
  for (const bool sequence : {false, true}) {
    TensorThreads threads(2);
    const auto run = [&](const RunOptions& options) {
      return run_cut(config, 2, sequence, true, DType::kF32, batch, options, threads);
    };
    const Whole cut = run({.segments = {4, 8}});
    expect_close(cut.result, run({}).result, 2e-5);
    expect_same_bits(run({.segments = {4, 8}, .recover = true}), cut);
  }
}

// What a run exchanges is what the catalogues say.
TEST_P(TensorParallel, TheCatalogueCountsTheExchanges) {
  const ModelConfig config = shape(GetParam(), false);
  const TestBatch batch = some_batch(config.vocabulary_size);
  for (const int size : {2, 4})
    for (const bool sequence : {false, true})
      for (const bool recover : {false, true}) {
        TensorThreads threads(size);
        run_cut(config, size, sequence, true, DType::kBF16, batch, {.recover = recover}, threads);
        const Model model(config, 0, {size, 0, sequence});
        TensorExchange sum;
        for (int l = 0; l < model.layer_count(); ++l) {
          const LayerCatalogue c = model.layer(l).catalogue(2, 12, DType::kBF16);
          sum += c.forward_exchange;
          if (recover && l > 0 && l + 1 < model.layer_count()) sum += c.recover_exchange;
          sum += c.backward_exchange;
        }
        EXPECT_EQ(sum.count, threads.exchanges) << size << sequence << recover;
        EXPECT_EQ(sum.bytes, threads.bytes_sent) << size << sequence << recover;
      }
}

// With sequence parallelism everything kept between forward and backward is cut, and so is the work.
TEST_P(TensorParallel, TheCatalogueDividesBytesAndWork) {
  const ModelConfig config = shape(GetParam(), false);
  const Model whole(config);
  for (const int size : {2, 4})
    for (const bool sequence : {false, true}) {
      const Model part(config, 0, {size, 1, sequence});
      const int shared = sequence ? size : 1;
      for (int l = 0; l < whole.layer_count(); ++l) {
        const LayerCatalogue all = whole.layer(l).catalogue(2, 12, DType::kBF16);
        const LayerCatalogue own = part.layer(l).catalogue(2, 12, DType::kBF16);
        EXPECT_EQ(own.output_bytes * shared, all.output_bytes) << all.name;
        EXPECT_EQ(own.gradient_bytes * shared, all.gradient_bytes) << all.name;
        ASSERT_EQ(own.saved.size(), all.saved.size());
        const bool head = l + 1 == whole.layer_count();
        for (size_t i = 0; i < all.saved.size(); ++i) {
          const bool resident = head || all.saved[i].name == "residual";
          EXPECT_EQ(own.saved[i].bytes * (resident ? shared : size), all.saved[i].bytes) << all.saved[i].name;
        }
        if (!head) {
          EXPECT_DOUBLE_EQ(own.forward_flops * size, all.forward_flops) << all.name;
        }
        EXPECT_EQ(all.forward_exchange.count + all.backward_exchange.count, 0);
      }
    }
}

TEST_P(TensorParallel, EveryRankLaysOutAlikeAndHoldsEachElementOnce) {
  const ModelConfig config = shape(GetParam(), false);
  const Model whole(config);
  for (const int size : {2, 4}) {
    std::map<std::string, std::vector<int>> holders;
    std::vector<Model> models;
    for (int r = 0; r < size; ++r) models.emplace_back(config, 0, TensorPart{size, r, true});
    for (int l = 0; l < whole.layer_count(); ++l) {
      const LayerCatalogue first = models[0].layer(l).catalogue(2, 12, DType::kF32);
      for (int r = 0; r < size; ++r) {
        const Layer& layer = models[static_cast<size_t>(r)].layer(l);
        const LayerCatalogue other = layer.catalogue(2, 12, DType::kF32);
        EXPECT_EQ(layer.block_size(), models[0].layer(l).block_size());
        EXPECT_EQ(other.temporary_bytes, first.temporary_bytes);
        ASSERT_EQ(other.tensors.size(), first.tensors.size());
        for (size_t i = 0; i < first.tensors.size(); ++i) {
          EXPECT_EQ(other.tensors[i].offset, first.tensors[i].offset);
          EXPECT_EQ(other.tensors[i].count, first.tensors[i].count);
        }
        for (size_t i = 0; i < layer.parameters().size(); ++i) {
          const ParameterSpec& spec = layer.parameters()[i];
          EXPECT_EQ(spec.shape, whole.layer(l).parameters()[i].shape);
          if (spec.replicated() && r > 0) continue;
          std::vector<int>& count = holders[spec.name];
          count.resize(static_cast<size_t>(spec.logical_count()));
          for_each_held_run(spec, [&](int64_t begin, int64_t, int64_t n) {
            for (int64_t e = begin; e < begin + n; ++e) ++count[static_cast<size_t>(e)];
          });
        }
      }
    }
    for (const auto& [name, count] : holders)
      for (const int n : count) ASSERT_EQ(n, 1) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, TensorParallel,
                         ::testing::Values(Architecture::kLlama, Architecture::kQwen2, Architecture::kQwen3,
                                           Architecture::kGpt2),
                         [](const auto& info) { return name_of(info.param); });

TEST(TensorPart, PiecesOfAnyRangeAreItsRuns) {
  ParameterSpec spec{.name = "w", .shape = {6, 8}};
  spec.held = {{.row = 0, .rows = 2, .column = 0, .columns = 8},
               {.row = 3, .rows = 3, .column = 2, .columns = 3}};
  std::vector<int64_t> logical;
  for (int64_t i = 0; i < 16; ++i) logical.push_back(i);
  for (int64_t row = 3; row < 6; ++row)
    for (int64_t column = 2; column < 5; ++column) logical.push_back(row * 8 + column);
  ASSERT_EQ(spec.count(), std::ssize(logical));
  for (int64_t begin = 0; begin < spec.count(); ++begin)
    for (int64_t count = 0; begin + count <= spec.count(); ++count) {
      int64_t next = begin;
      for (const HeldPiece& piece : held_pieces(spec, begin, count))
        for (int64_t run = 0; run < piece.runs; ++run)
          for (int64_t i = 0; i < piece.length; ++i, ++next) {
            ASSERT_EQ(piece.offset + run * piece.length + i, next);
            ASSERT_EQ(piece.begin + run * piece.stride + i, logical[static_cast<size_t>(next)]);
          }
      ASSERT_EQ(next, begin + count);
    }
}

TEST(TensorPart, InitialValuesAreThoseOfTheWholeTensor) {
  const ModelConfig config = shape(Architecture::kGpt2, false);
  const Model whole(config), part(config, 0, {4, 2, true});
  for (int l = 0; l < whole.layer_count(); ++l)
    for (size_t i = 0; i < whole.layer(l).parameters().size(); ++i) {
      const ParameterSpec &all = whole.layer(l).parameters()[i], &held = part.layer(l).parameters()[i];
      std::vector<float> expected(static_cast<size_t>(all.count())),
          values(static_cast<size_t>(held.count()));
      initialize_held(all, 3, 0, expected);
      initialize_held(held, 3, 0, values);
      for_each_held_run(held, [&](int64_t from, int64_t to, int64_t count) {
        for (int64_t e = 0; e < count; ++e)
          ASSERT_EQ(values[static_cast<size_t>(to + e)], expected[static_cast<size_t>(from + e)]) << all.name;
      });
    }
}

TEST(TensorPart, SizesThatDoNotDivideAreRefusedByName) {
  const auto refused = [](const ModelConfig& config, int size, const std::string& key) {
    try {
      const Model model(config, 0, {size, 0, false});
      FAIL() << key;
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find("parallel.tensor_parallel_size"), std::string::npos);
      EXPECT_NE(std::string(error.what()).find(key), std::string::npos) << error.what();
    }
  };
  ModelConfig config = shape(Architecture::kLlama, false);
  refused(config, 3, "model.num_attention_heads");
  refused(config, 8, "model.num_query_groups");
  config.ffn_hidden_size = 30;
  refused(config, 4, "model.ffn_hidden_size");
  config = shape(Architecture::kLlama, false);
  config.vocabulary_size = 3;
  refused(config, 4, "model.vocabulary_size");
}

// Every logit equal, five words on two ranks: ln 5.
TEST(TensorPart, OddVocabularyTakesNoPaddingIntoTheSoftmax) {
  ModelConfig config = shape(Architecture::kLlama, false);
  config.vocabulary_size = 5;
  TensorThreads threads(4);
  threads.run([&](TensorGroup& group) {
    ModelRunner runner(config, make_host_kernels(1), DType::kF32, &group, true);
    runner.set_weights(
        [](const ParameterSpec&, std::span<float> values) { std::ranges::fill(values, 0.0f); });
    const RunResult result = runner.run(some_batch(5));
    EXPECT_NEAR(result.loss_sum / static_cast<double>(result.valid_tokens), 1.6094379, 1e-7);
  });
}

}  // namespace
}  // namespace trainer
