// Waiting-time attribution: when the main path could not go on, the dependency that arrived last says why.
// Boundary messages carry what their sender had waited, so that a late update on one stage is not booked as a
// bubble on the next.
#pragma once

#include <array>
#include <map>
#include <mutex>
#include <vector>

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
  // The main path waited from `begin` to `end` for a task of `kind`, or for the lane that ran it.
  void waited(int64_t step, TaskKind kind, double begin, double end);
  // For the message of this direction and micro-batch.
  void waited_for_message(int64_t step, bool forward, int micro_batch, double begin, double end);
  // For the exchange of all ranks at the end of step `ended`: until the last rank's main path had ended, it
  // was the bubble. Returns when that was, at most `end`.
  double waited_for_main_paths(int64_t ended, int64_t step, double begin, double end);
  void all_main_paths_ended(int64_t step, double when);
  // A receive posted at `begin` was complete at `end`.
  void transferred(int64_t step, bool forward, int micro_batch, double begin, double end);
  void step_ended(int64_t step, double when);
  // The compute lane ran a task of the main path for `seconds`, or recovered what it needed.
  void ran(int64_t step, TaskKind kind, double seconds);

  BoundaryTrailer outgoing(double now) const;
  void arrived(bool forward, int micro_batch, const BoundaryTrailer& trailer);

  struct StepAccount {
    ExposedTime exposed;
    // When the last Forward or Backward of the step ended, of the last step of a run all of it.
    double end = 0;
    double main_path = 0;  // seconds of forward and backward work
    // Of each Forward and Backward in the order they ran; of each message received, from when both sides were
    // ready, by direction.
    std::vector<double> compute, received_forward, received_backward;
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
  std::map<int64_t, double> main_path_ends_;  // by step, of the last rank
};

}  // namespace trainer
