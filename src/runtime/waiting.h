// Waiting-time attribution: when the main path could not go on, the dependency that arrived last says why.
// Boundary messages carry what their sender had waited, so that a late update on one stage is not booked as a
// bubble on the next.
#pragma once

#include <array>
#include <map>
#include <mutex>

#include "schedule/step_graph.h"
#include "schedule/timeline.h"

namespace trainer {

// The causes other than the bubble, in the order of ExposedTime.
enum class Cause : uint8_t { kBoundary, kGradSync, kUpdate, kPrefetch, kRecovery };
inline constexpr int kCauseCount = 5;

// Travels at the end of every boundary message.
struct BoundaryTrailer {
  double ready = 0;                           // when the sender had it, on the common clock
  std::array<double, kCauseCount> exposed{};  // of the sender since the run began, seconds by cause
};

// Thread safe.
class WaitLedger {
 public:
  // The compute lane waited from `begin` to `end` for a task of `kind`; for a receive, of this direction and
  // micro-batch.
  void waited(int64_t step, TaskKind kind, bool forward, int micro_batch, double begin, double end);
  // The compute lane ran a task for `seconds`.
  void ran(int64_t step, TaskKind kind, double seconds);

  BoundaryTrailer outgoing(double now) const;
  void arrived(bool forward, int micro_batch, const BoundaryTrailer& trailer);

  struct StepAccount {
    ExposedTime exposed;
    double main_path = 0;  // seconds of forward and backward work
  };
  // Removes and returns the account of a step.
  StepAccount take(int64_t step);

 private:
  struct Arrival {
    double ready = 0;
    std::array<double, kCauseCount> exposed{};  // since the message before
  };
  void book(int64_t step, Cause cause, double seconds);

  mutable std::mutex mutex_;
  std::map<int64_t, StepAccount> steps_;
  std::array<double, kCauseCount> total_{};
  std::array<BoundaryTrailer, 2> last_;  // by direction
  std::map<std::pair<bool, int>, Arrival> arrivals_;
};

}  // namespace trainer
