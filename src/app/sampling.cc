#include "app/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace trainer {

int32_t TokenSampler::sample(std::span<const float> logits, int64_t position) {
  require(!logits.empty(), "sampling from no logits");
  for (float logit : logits)
    if (std::isnan(logit))
      run_error("the logits at position {} are not numbers: the weights are damaged", position);
  if (options_.temperature == 0)
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());

  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i) candidates_.push_back({static_cast<int32_t>(i), logits[i]});
  const auto more_likely = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  };
  if (options_.top_k > 0 && static_cast<size_t>(options_.top_k) < candidates_.size()) {
    std::nth_element(candidates_.begin(), candidates_.begin() + options_.top_k, candidates_.end(),
                     more_likely);
    candidates_.resize(static_cast<size_t>(options_.top_k));
  }
  // One order, whatever nth_element left: the sum below must not depend on the library.
  std::sort(candidates_.begin(), candidates_.end(), more_likely);
  weights_.clear();
  for (const auto& candidate : candidates_)
    weights_.push_back(std::exp((double{candidate.logit} - candidates_[0].logit) / options_.temperature));
  double total = std::accumulate(weights_.begin(), weights_.end(), 0.0);
  if (options_.top_p < 1) {
    const double wanted = options_.top_p * total;
    total = 0;
    size_t kept = 0;
    do total += weights_[kept++];
    while (kept < weights_.size() && total < wanted);
    weights_.resize(kept);
  }

  const auto words = random_.block(static_cast<uint64_t>(position));
  const uint64_t bits = (uint64_t{words[0]} << 32 | words[1]) >> 11;
  double left = static_cast<double>(bits) * 0x1p-53 * total;
  for (size_t i = 0; i < weights_.size(); ++i) {
    left -= weights_[i];
    if (left < 0) return candidates_[i].token;
  }
  return candidates_[weights_.size() - 1].token;
}

}  // namespace trainer
