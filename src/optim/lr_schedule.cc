#include "optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace trainer {
namespace {

double cosine_share(double progress) { return 0.5 * (1 + std::cos(std::numbers::pi * progress)); }

// Share of (lr - min_lr) that is left after `progress` in [0, 1] of the tail.
double wsd_share(WsdDecayStyle style, double progress) {
  switch (style) {
    case WsdDecayStyle::kLinear:
      return 1 - progress;
    case WsdDecayStyle::kCosine:
      return cosine_share(progress);
    case WsdDecayStyle::kExponential:
      return 2 * std::pow(0.5, progress) - 1;
    case WsdDecayStyle::kMinusSqrt:
      return 1 - std::sqrt(progress);
  }
  return 0;
}

}  // namespace

double learning_rate(const LrSchedule& s, int64_t updates_done) {
  if (updates_done < s.warmup_steps)
    return s.lr * static_cast<double>(updates_done) / static_cast<double>(s.warmup_steps);
  if (s.style == LrDecayStyle::kConstant) return s.lr;
  if (updates_done >= s.decay_steps) return s.min_lr;

  // From here 0 <= warmup_steps <= updates_done < decay_steps: no divisor below is 0.
  const bool wsd = s.style == LrDecayStyle::kWsd;
  const int64_t start = wsd ? std::max<int64_t>(0, s.decay_steps - s.wsd_decay_steps) : s.warmup_steps;
  if (updates_done <= start) return s.lr;
  const double progress =
      static_cast<double>(updates_done - start) / static_cast<double>(s.decay_steps - start);
  const double share = wsd                                ? wsd_share(s.wsd_style, progress)
                       : s.style == LrDecayStyle::kCosine ? cosine_share(progress)
                                                          : 1 - progress;
  return s.min_lr + std::max(0.0, share) * (s.lr - s.min_lr);
}

}  // namespace trainer
