// How much of the classifier's softmax exists at a time on the host backend.
#pragma once

#include <algorithm>
#include <cstdint>

namespace trainer {

// Of one chunk; more take memory and are no faster.
constexpr int64_t kMostClassifierTokens = 640;
constexpr int64_t kClassifierChunkBytes = int64_t{128} << 20;

// Tokens of one chunk: in fp32 their softmax takes at most kClassifierChunkBytes (half of it where the
// processor multiplies bf16), but they are not so few that the products slow down, which spend their time
// reading weights where rows are few.
constexpr int64_t classifier_chunk_tokens(int64_t vocabulary) {
  return std::clamp<int64_t>(kClassifierChunkBytes / (vocabulary * 4), 128, kMostClassifierTokens);
}

}  // namespace trainer
