#include "data/synthetic_source.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace trainer {
namespace {

constexpr int64_t kVocabulary = 50, kSequence = 400;

TEST(SyntheticSource, SamplesAreSequencesOfTheVocabulary) {
  const SyntheticSource source(kSequence, kVocabulary, 7, 0, 20);
  EXPECT_EQ(source.size(), 20);
  Sample sample;
  std::vector<int> seen(kVocabulary);
  for (int64_t s = 0; s < source.size(); ++s) {
    source.fetch(s, sample);
    ASSERT_EQ(sample.tokens.size(), 400u);
    ASSERT_EQ(sample.labels.size(), 400u);
    EXPECT_EQ(sample.valid_tokens, kSequence);
    EXPECT_EQ(source.valid_tokens(s), kSequence);
    for (size_t i = 0; i < sample.tokens.size(); ++i) {
      ASSERT_TRUE(sample.tokens[i] >= 0 && sample.tokens[i] < kVocabulary);
      EXPECT_EQ(sample.positions[i], static_cast<int32_t>(i));
      if (i > 0) {
        EXPECT_EQ(sample.tokens[i], sample.labels[i - 1]);
      }
      ++seen[static_cast<size_t>(sample.tokens[i])];
    }
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 0), 0);
}

TEST(SyntheticSource, TheLikeliestNextTokenIsRightThreeTimesOutOfFour) {
  const SyntheticSource source(kSequence, kVocabulary, 7, 0, 50);
  std::map<int32_t, std::map<int32_t, int>> followers;
  Sample sample;
  for (int64_t s = 0; s < source.size(); ++s) {
    source.fetch(s, sample);
    for (size_t i = 0; i < sample.tokens.size(); ++i) ++followers[sample.tokens[i]][sample.labels[i]];
  }
  int right = 0;
  for (const auto& [token, counts] : followers)
    right += std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) {
               return a.second < b.second;
             })->second;
  EXPECT_NEAR(right / (50.0 * kSequence), 0.75 + 0.25 / kVocabulary, 0.02);
}

TEST(SyntheticSource, SamplesDependOnNumberAndSeedAlone) {
  const SyntheticSource source(kSequence, kVocabulary, 7, 0, 20), later(kSequence, kVocabulary, 7, 5, 20),
      other(kSequence, kVocabulary, 8, 0, 20);
  Sample a, b;
  source.fetch(9, a);
  later.fetch(4, b);
  EXPECT_EQ(a.labels, b.labels);
  source.fetch(4, b);
  EXPECT_NE(a.labels, b.labels);
  other.fetch(9, b);
  EXPECT_NE(a.labels, b.labels);
  EXPECT_NE(source.fingerprint(), other.fingerprint());
  EXPECT_EQ(source.fingerprint(), SyntheticSource(kSequence, kVocabulary, 7, 0, 90).fingerprint());
}

}  // namespace
}  // namespace trainer
