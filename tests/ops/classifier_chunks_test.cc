// The classifier over several chunks of tokens: with this vocabulary a chunk has 128 of them, 100 on the
// simulated device.
#include "base/error.h"
#include "ops/op_test.h"

namespace trainer {
namespace {

constexpr int64_t kTokens = 257, kHidden = 2;

class ClassifierChunksTest : public OpTest {
 protected:
  ClassifierChunksTest() : labels_(kTokens) {
    for (int64_t t = 0; t < kTokens; ++t) labels_[t] = static_cast<int32_t>(t * 104729 % vocabulary_);
  }
  WorkspaceShape bounds() const {
    return {.tokens = kTokens, .widest_row = kHidden, .hidden = kHidden, .vocabulary = vocabulary_};
  }
  struct Outputs {
    Array dx, dweight, token_losses;
    ClassifierResult result;
  };
  Outputs run(KernelSet& kernels) const {
    Outputs o{Array(dtype(), kTokens * kHidden, 3),
              Array(DType::kF32, vocabulary_ * kHidden, 4),
              Array(DType::kF32, kTokens, 5),
              {}};
    const Array x(dtype(), kTokens * kHidden, 1), weight(dtype(), vocabulary_ * kHidden, 2);
    o.result = kernels.classifier({.tokens = kTokens,
                                   .hidden = kHidden,
                                   .vocabulary = vocabulary_,
                                   .x = x.ref(),
                                   .weight = weight.ref(),
                                   .labels = labels_.data(),
                                   .dx = o.dx.ref(),
                                   .dweight = o.dweight.f32(),
                                   .token_losses = o.token_losses.f32()});
    return o;
  }

  const int64_t vocabulary_ = simt() ? 301 : 70001;
  std::vector<int32_t> labels_;
};

TEST_P(ClassifierChunksTest, BitsDoNotDependOnThreads) {
  labels_[5] = labels_[256] = kIgnoredLabel;
  const Outputs one = run(*granted(bounds(), 1));
  EXPECT_EQ(one.result.valid_tokens, kTokens - 2);
  const Outputs more = run(*granted(bounds(), 3));
  EXPECT_EQ(one.result.loss_sum, more.result.loss_sum);
  expect_same_bits(one.dx, more.dx, "dx");
  expect_same_bits(one.dweight, more.dweight, "dweight");
  expect_same_bits(one.token_losses, more.token_losses, "token losses");
}

// A chunk without labels is passed over: the rest is what the other tokens alone give.
TEST_P(ClassifierChunksTest, AChunkWithoutLabels) {
  std::fill(labels_.begin() + 80, labels_.begin() + 175, kIgnoredLabel);
  const Outputs some = run(*granted(bounds(), 1));
  EXPECT_EQ(some.result.valid_tokens, kTokens - 95);
  double sum = 0.0;
  for (int64_t t = 0; t < kTokens; ++t) sum += some.token_losses.at(t);
  EXPECT_NEAR(sum, some.result.loss_sum, 1e-5 * sum);
  for (int64_t t = 80; t < 175; ++t) {
    ASSERT_EQ(some.token_losses.at(t), 0.0) << t;
    for (int64_t c = 0; c < kHidden; ++c) ASSERT_EQ(some.dx.at(t * kHidden + c), 0.0) << t;
  }
}

// With one word per token the slopes of a token sum to 0, so the gradient of equal weights does.
TEST_P(ClassifierChunksTest, SlopesOfATokenSumToZero) {
  const Array x = Array::filled(dtype(), kTokens * kHidden, 1.0);
  const Array weight = Array::filled(dtype(), vocabulary_ * kHidden, 0.5);
  Array dx(dtype(), kTokens * kHidden, 3), dweight = Array::filled(DType::kF32, vocabulary_ * kHidden, 0.0);
  const Granted kernels = granted(bounds(), 1);
  const ClassifierResult result = kernels->classifier({.tokens = kTokens,
                                                       .hidden = kHidden,
                                                       .vocabulary = vocabulary_,
                                                       .x = x.ref(),
                                                       .weight = weight.ref(),
                                                       .labels = labels_.data(),
                                                       .dx = dx.ref(),
                                                       .dweight = dweight.f32(),
                                                       .token_losses = nullptr});
  const double log_words = std::log(static_cast<double>(vocabulary_));
  EXPECT_NEAR(result.loss_sum, kTokens * log_words, 1e-4 * kTokens);
  // Slopes that are operands of a tensor core are rounded to bf16.
  const double rounding = simt() && dtype() == DType::kBF16 ? 0x1p-8 : 0.0;
  for (int64_t e = 0; e < dx.size(); ++e) ASSERT_NEAR(dx.at(e), 0.0, 1e-3 + rounding) << e;
  const double share = static_cast<double>(kTokens) / static_cast<double>(vocabulary_);
  for (int64_t word = 0; word < vocabulary_; word += vocabulary_ / 69) {
    const auto own = static_cast<double>(std::count(labels_.begin(), labels_.end(), word));
    ASSERT_NEAR(dweight.at(word * kHidden), share - own, 1e-4 + rounding * (share + own)) << "word " << word;
  }
}

TEST_P(ClassifierChunksTest, AWrongLabelNamesItsToken) {
  for (const int32_t wrong : {-1, static_cast<int32_t>(vocabulary_), -101}) {
    labels_[207] = wrong;
    try {
      run(*granted(bounds()));
      ADD_FAILURE() << "label " << wrong << " was taken";
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find(fmt::format("label {} of token 207", wrong)),
                std::string::npos)
          << error.what();
    }
  }
}

TRAINER_OP_CASES(ClassifierChunksTest);

}  // namespace
}  // namespace trainer
