// Choosing the next token from logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/philox.h"

namespace trainer {

struct SamplingOptions {
  double temperature = 1;  // 0: always the most likely token, of equals the one with the smallest id
  int64_t top_k = 0;       // only the k most likely tokens; 0: all
  double top_p = 1;        // only the most likely tokens, as many as reach this probability together
};

class TokenSampler {
 public:
  TokenSampler(SamplingOptions options, uint64_t seed) : options_(options), random_(seed) {}

  // The token at `position` of the text. Depends on the seed, the position and the logits only, not on what
  // was sampled before.
  int32_t sample(std::span<const float> logits, int64_t position);

 private:
  struct Candidate {
    int32_t token;
    float logit;
  };
  SamplingOptions options_;
  Philox random_;
  std::vector<Candidate> candidates_;
  std::vector<double> weights_;
};

}  // namespace trainer
