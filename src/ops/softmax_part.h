// What ranks that share a vocabulary tell one another about a token.
#pragma once

namespace trainer {

// What one rank knows of a token's softmax from its own words: the largest logit; the sum of
// e^(logit - largest); the label's logit, 0 where the label is another rank's.
struct SoftmaxPart {
  double largest, total, target;
};

}  // namespace trainer
