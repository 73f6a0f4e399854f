// T_1F1B of a step as it was measured: the main path alone, its tasks as long as they were, all else free.
#pragma once

#include <vector>

#include "runtime/waiting.h"
#include "schedule/problem.h"
#include "schedule/step_graph.h"

namespace trainer {

// Up to so many ranks steps are simulated from what was measured of them.
inline constexpr int kRanksSimulated = 64;

class MainPathReplay {
 public:
  explicit MainPathReplay(Problem problem);

  // Seconds from the first Forward to the last Backward of any rank, by simulation; `accounts` has one entry
  // per rank. NaN when an account does not hold the whole step, and beyond kRanksSimulated.
  double seconds(const std::vector<WaitLedger::StepAccount>& accounts) const;

 private:
  StepGraph graph_;
};

}  // namespace trainer
