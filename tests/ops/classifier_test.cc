#include <array>
#include <cmath>

#include "ops/classifier_chunk.h"
#include "ops/op_test.h"
#include "support/tensor_threads.h"

namespace trainer {
namespace {

struct Case {
  int64_t tokens, hidden, vocabulary;
  std::vector<int32_t> labels;
  Array x, weight, dx, dweight, token_losses;
  Case(DType type, int64_t tokens, int64_t hidden, int64_t vocabulary, double weight_scale = 0.5)
      : tokens(tokens),
        hidden(hidden),
        vocabulary(vocabulary),
        x(type, tokens * hidden, 1),
        weight(type, vocabulary * hidden, 2, weight_scale),
        dx(type, tokens * hidden, 3),
        dweight(DType::kF32, vocabulary * hidden, 4),
        token_losses(DType::kF32, tokens, 5) {
    for (int64_t t = 0; t < tokens; ++t) {
      labels.push_back(t % 5 == 3 ? kIgnoredLabel
                                  : static_cast<int32_t>((t * 7919 + vocabulary - 1) % vocabulary));
    }
  }
  Classifier arguments() {
    return {.tokens = tokens,
            .hidden = hidden,
            .vocabulary = vocabulary,
            .x = x.ref(),
            .weight = weight.ref(),
            .labels = labels.data(),
            .dx = dx.ref(),
            .dweight = dweight.f32(),
            .token_losses = token_losses.f32()};
  }
};

class ClassifierTest : public OpTest {
 protected:
  Granted granted_for(int64_t tokens, int64_t hidden, int64_t vocabulary, int threads = 2) const {
    return granted({.tokens = tokens, .widest_row = hidden, .hidden = hidden, .vocabulary = vocabulary},
                   threads);
  }
  void expect_like_reference(Case& expected) const {
    const std::string what =
        fmt::format("{} x {} x {}", expected.tokens, expected.hidden, expected.vocabulary);
    const Granted kernels = granted_for(expected.tokens, expected.hidden, expected.vocabulary);
    Case actual(expected);
    const ClassifierResult want = reference_->classifier(expected.arguments());
    const ClassifierResult got = kernels->classifier(actual.arguments());
    EXPECT_EQ(want.valid_tokens, got.valid_tokens) << what;
    EXPECT_NEAR(want.loss_sum, got.loss_sum, tolerance("loss").f32 * (1.0 + want.loss_sum)) << what;
    expect_near(expected.token_losses, actual.token_losses, tolerance("loss").f32, "token losses " + what);
    expect_near(expected.dx, actual.dx, within("classifier"), "dx " + what);
    expect_near(expected.dweight, actual.dweight, within("classifier weight"), "dweight " + what);
  }
};

TEST_P(ClassifierTest, LossAndGradients) {
  struct Shape {
    int64_t tokens, hidden, vocabulary;
  };
  for (const Shape& s :
       {Shape{1, 1, 1}, {3, 17, 5}, {17, 65, 129}, {300, 16, 1001}, {65, 3, 2049}, {5, 16, 20011}}) {
    if (simt() && s.vocabulary > 2000) continue;
    Case expected(dtype(), s.tokens, s.hidden, s.vocabulary);
    expect_like_reference(expected);
  }
}

// A hidden size whose sums take several parts: the softmax is of their total. Weights are small, so that
// logits are near 1.
TEST_P(ClassifierTest, LogitsOfSeveralParts) {
  if (simt()) GTEST_SKIP() << "its products have no parts";
  Case expected(dtype(), 37, 2200, 77, 0.02);
  expect_like_reference(expected);
}

TEST_P(ClassifierTest, ForwardOnlyAndFrozenWeights) {
  const Granted kernels = granted_for(37, 33, 515);
  Case both(dtype(), 37, 33, 515), forward(both), frozen(both);
  const ClassifierResult with = kernels->classifier(both.arguments());
  Classifier a = forward.arguments();
  a.dx = {};
  a.dweight = nullptr;
  a.token_losses = nullptr;
  const ClassifierResult without = kernels->classifier(a);
  EXPECT_EQ(with.loss_sum, without.loss_sum) << "evaluation and training report the same loss";
  EXPECT_EQ(with.valid_tokens, without.valid_tokens);
  Classifier b = frozen.arguments();
  b.dweight = nullptr;
  kernels->classifier(b);
  expect_same_bits(both.dx, frozen.dx, "dx of frozen weights");
  const Case untouched(dtype(), 37, 33, 515);
  expect_same_bits(untouched.dx, forward.dx, "dx of forward only");
  expect_same_bits(untouched.dweight, forward.dweight, "dweight of forward only");
  expect_same_bits(untouched.dweight, frozen.dweight, "dweight of frozen weights");
  expect_same_bits(untouched.token_losses, forward.token_losses, "token losses that were not asked for");
}

// Words cut over ranks: every rank has the whole loss, its own words' gradient, and a summand of dx.
TEST_P(ClassifierTest, PartsOfTheVocabularyMakeTheWhole) {
  constexpr int64_t kTokens = 300, kHidden = 17;
  const int64_t kVocabulary = simt() ? 301 : 1001;
  for (const int ranks : {2, 3}) {
    Case whole(dtype(), kTokens, kHidden, kVocabulary);
    const Case before(whole);
    const ClassifierResult want = reference_->classifier(whole.arguments());
    std::vector<Case> cases(static_cast<size_t>(ranks), before);
    std::vector<ClassifierResult> results(cases.size());
    TensorThreads threads(ranks);
    threads.run([&](TensorGroup& group) {
      const auto r = static_cast<size_t>(group.rank());
      const int64_t begin = kVocabulary * group.rank() / ranks;
      const int64_t end = kVocabulary * (group.rank() + 1) / ranks;
      const Granted kernels = granted({.tokens = kTokens,
                                       .widest_row = kHidden,
                                       .hidden = kHidden,
                                       .vocabulary = kVocabulary / ranks + 1,
                                       .tensor_ranks = ranks});
      Classifier a = cases[r].arguments();
      a.vocabulary = end - begin;
      a.weight = a.weight.at(begin * kHidden);
      a.dweight += begin * kHidden;
      a.part = {.group = &group, .first = begin, .words = kVocabulary, .most = kVocabulary / ranks + 1};
      results[r] = kernels->classifier(a);
    });
    Array dx = Array::filled(DType::kF32, kTokens * kHidden, 0.0), dweight(before.dweight);
    for (size_t r = 0; r < cases.size(); ++r) {
      EXPECT_EQ(results[r].valid_tokens, want.valid_tokens);
      EXPECT_EQ(results[r].loss_sum, results[0].loss_sum);
      EXPECT_NEAR(results[r].loss_sum, want.loss_sum, tolerance("loss").f32 * (1.0 + want.loss_sum));
      expect_near(whole.token_losses, cases[r].token_losses, tolerance("loss").f32, "token losses");
      for (int64_t i = 0; i < dx.size(); ++i) dx.set(i, dx.at(i) + cases[r].dx.at(i));
      for (int64_t i = 0; i < dweight.size(); ++i)
        dweight.set(i, dweight.at(i) + cases[r].dweight.at(i) - before.dweight.at(i));
    }
    expect_near(whole.dx, dx, 2 * within("classifier"), "dx");
    expect_near(whole.dweight, dweight, within("classifier weight"), "dweight");
  }
}

// Of the smaller part all tokens make a chunk, of the larger one, by a word, they do not: exchanges must
// still meet.
TEST_P(ClassifierTest, PartsOfUnequalSizeHaveTheSameChunks) {
  if (simt()) GTEST_SKIP() << "its chunks do not depend on the vocabulary";
  constexpr int64_t kTokens = 516, kMost = kClassifierChunkBytes / 4 / kTokens + 1,
                    kVocabulary = 2 * kMost - 1;
  ASSERT_GE(classifier_chunk_tokens(kMost - 1), kTokens);
  ASSERT_LT(classifier_chunk_tokens(kMost), kTokens);
  Case whole(dtype(), kTokens, 1, kVocabulary);
  TensorThreads threads(2);
  ClassifierResult results[2];
  threads.run([&](TensorGroup& group) {
    const int64_t first = group.rank() * kMost;
    const Granted kernels =
        granted({.tokens = kTokens, .widest_row = 1, .hidden = 1, .vocabulary = kMost, .tensor_ranks = 2}, 1);
    Classifier a = whole.arguments();
    a.dx = {};
    a.dweight = nullptr;
    a.token_losses = nullptr;
    a.vocabulary = kMost - group.rank();
    a.weight = a.weight.at(first);
    a.part = {.group = &group, .first = first, .words = kVocabulary, .most = kMost};
    results[group.rank()] = kernels->classifier(a);
  });
  EXPECT_EQ(threads.exchanges, 2);
  EXPECT_EQ(results[0].loss_sum, results[1].loss_sum);
  EXPECT_GT(results[0].loss_sum, 0.0);
}

TEST_P(ClassifierTest, AWrongLabelOfAnotherRanksWordsIsRefused) {
  Case c(dtype(), 4, 8, 16);
  c.labels[2] = 32;
  TensorThreads threads(2);
  threads.run([&](TensorGroup& group) {
    const Granted kernels =
        granted({.tokens = 4, .widest_row = 8, .hidden = 8, .vocabulary = 16, .tensor_ranks = 2}, 1);
    Case own(c);
    Classifier a = own.arguments();
    a.part = {.group = &group, .first = 16 * group.rank(), .words = 32, .most = 16};
    try {
      kernels->classifier(a);
      ADD_FAILURE() << "taken";
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find("label 32 of token 2 is outside the vocabulary of 32"),
                std::string::npos)
          << error.what();
    }
  });
}

TEST_P(ClassifierTest, GradientsOfWeightsAddUp) {
  const Granted kernels = granted_for(9, 20, 77);
  Case once(dtype(), 9, 20, 77), twice(once);
  kernels->classifier(once.arguments());
  kernels->classifier(twice.arguments());
  kernels->classifier(twice.arguments());
  const Array before = Case(dtype(), 9, 20, 77).dweight;
  Array expected(before);
  for (int64_t i = 0; i < before.size(); ++i) expected.set(i, 2.0 * once.dweight.at(i) - before.at(i));
  expect_near(expected, twice.dweight, 1e-6, "dweight");
}

// Whatever lay there before, also where the tokens take several chunks, of which the first may have no label.
TEST_P(ClassifierTest, FirstGradientsOfWeightsAreWritten) {
  for (const auto& [tokens, hidden, vocabulary, unlabelled] :
       {std::array<int64_t, 4>{9, 20, 77, 0},
        {kMostClassifierTokens + 9, 8, 33, 0},
        {kMostClassifierTokens + 9, 8, 33, kMostClassifierTokens / 2 + 5}}) {
    const Granted kernels = granted_for(tokens, hidden, vocabulary);
    Case written(dtype(), tokens, hidden, vocabulary), added(written);
    const auto spoil = [&] {
      for (int64_t i = 0; i < written.dweight.size(); ++i) written.dweight.set(i, NAN);
    };
    for (int64_t i = 0; i < added.dweight.size(); ++i) added.dweight.set(i, 0);
    for (Case* one : {&written, &added})
      std::fill_n(one->labels.begin(), static_cast<size_t>(unlabelled), kIgnoredLabel);
    Classifier a = written.arguments();
    a.accumulate = false;
    spoil();
    kernels->classifier(a);
    kernels->classifier(added.arguments());
    for (int64_t i = 0; i < added.dweight.size(); ++i) {
      ASSERT_EQ(added.dweight.at(i), written.dweight.at(i)) << tokens << " tokens, at " << i;
    }
    const Array zeros = Array::filled(DType::kF32, vocabulary * hidden, 0.0);
    std::fill(written.labels.begin(), written.labels.end(), kIgnoredLabel);
    spoil();
    kernels->classifier(a);
    expect_same_bits(zeros, written.dweight, "no valid label");
    spoil();
    a.tokens = 0;
    kernels->classifier(a);
    expect_same_bits(zeros, written.dweight, "no token");
  }
}

TEST_P(ClassifierTest, NoValidTokenGivesZeros) {
  const Granted kernels = granted_for(19, 24, 50);
  Case none(dtype(), 19, 24, 50);
  none.labels.assign(19, kIgnoredLabel);
  const ClassifierResult result = kernels->classifier(none.arguments());
  EXPECT_EQ(result.loss_sum, 0.0);
  EXPECT_EQ(result.valid_tokens, 0);
  expect_same_bits(Array::filled(dtype(), 19 * 24, 0.0), none.dx, "dx");
  expect_same_bits(Array::filled(DType::kF32, 19, 0.0), none.token_losses, "token losses");
  expect_same_bits(Case(dtype(), 19, 24, 50).dweight, none.dweight, "dweight");
}

// Sums over ranks: [1, 2, 3, 2] with four valid labels and a rank without any make 8 / 4, not a mean of
// means.
TEST_P(ClassifierTest, AMicroBatchWithoutLabelsAddsNothingToSumOrCount) {
  const Granted kernels = granted_for(4, 1, 2);
  Case some(dtype(), 4, 1, 2);
  const double losses[] = {1.0, 2.0, 3.0, 2.0};
  some.weight.set(0, 0.0);
  some.weight.set(1, 1.0);
  for (int64_t t = 0; t < 4; ++t) {
    some.labels[t] = 0;
    some.x.set(t, std::log(std::expm1(losses[t])));  // ln(1 + e^x) is the loss
  }
  Case none(some);
  none.labels.assign(4, kIgnoredLabel);
  const ClassifierResult a = kernels->classifier(some.arguments()), b = kernels->classifier(none.arguments());
  const double mean = (a.loss_sum + b.loss_sum) / static_cast<double>(a.valid_tokens + b.valid_tokens);
  EXPECT_NEAR(mean, 2.0, dtype() == DType::kF32 ? 1e-6 : 0.01);
}

// A vocabulary of 5 whose rows are stored padded to 8: the padding takes no part in the softmax.
TEST_P(ClassifierTest, PaddingRowsOfTheVocabularyAreNotCounted) {
  const Granted kernels = granted_for(6, 8, 5);
  Case padded(dtype(), 6, 8, 8);
  padded.vocabulary = 5;
  padded.labels.assign(6, 4);
  for (int64_t i = 0; i < padded.weight.size(); ++i) padded.weight.set(i, i < 5 * 8 ? 0.0 : NAN);
  const ClassifierResult result = kernels->classifier(padded.arguments());
  EXPECT_NEAR(result.loss_sum / 6.0, std::log(5.0), 1e-6);
  const Case before(dtype(), 6, 8, 8);
  for (int64_t i = 5 * 8; i < 8 * 8; ++i) ASSERT_EQ(before.dweight.at(i), padded.dweight.at(i));
}

TEST_P(ClassifierTest, LargeLogits) {
  const Granted kernels = granted_for(8, 16, 40);
  Case expected(dtype(), 8, 16, 40);
  for (int64_t i = 0; i < expected.x.size(); ++i) expected.x.set(i, 300.0 * expected.x.at(i));
  Case actual(expected);
  const ClassifierResult want = reference_->classifier(expected.arguments());
  const ClassifierResult got = kernels->classifier(actual.arguments());
  EXPECT_NEAR(want.loss_sum, got.loss_sum, 1e-5 * want.loss_sum);
  expect_near(expected.dx, actual.dx, std::max(1e-3, within("classifier")), "dx");
}

TRAINER_OP_CASES(ClassifierTest);

}  // namespace
}  // namespace trainer
