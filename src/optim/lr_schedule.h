// The learning rate as a function of the updates already made. Nothing here keeps state: a skipped step makes
// no update, so it does not advance the schedule, and a resumed run asks with the count its checkpoint holds.
#pragma once

#include <cstdint>

namespace trainer {

enum class LrDecayStyle : uint8_t { kConstant, kLinear, kCosine, kWsd };
// The tail of warm-up, stable, decay (WSD).
enum class WsdDecayStyle : uint8_t { kLinear, kCosine, kExponential, kMinusSqrt };

struct LrSchedule {
  double lr = 0;      // the peak
  double min_lr = 0;  // where decay ends; at most lr
  LrDecayStyle style = LrDecayStyle::kCosine;
  int64_t warmup_steps = 0;     // updates that rise linearly from 0 to lr
  int64_t decay_steps = 1;      // updates after which the rate stays at min_lr; warm-up is counted
  int64_t wsd_decay_steps = 0;  // length of the WSD tail, which ends at decay_steps
  WsdDecayStyle wsd_style = WsdDecayStyle::kLinear;
};

// The rate of the update made when `updates_done` (from 0) have been made before it. Warm-up comes first
// where it overlaps decay; with warmup_steps >= decay_steps the rate drops to min_lr when warm-up ends
// (constant: stays at lr). Finite and not negative for every schedule with 0 <= min_lr <= lr.
double learning_rate(const LrSchedule& schedule, int64_t updates_done);

}  // namespace trainer
