// The mixed-integer program of checkpoint_plan.h and the way back from its solution to a schedule.
#pragma once

#include <array>
#include <map>
#include <vector>

#include "plan/checkpoint_plan.h"

namespace trainer {

// Bytes of boundaries of one home that moved by the end of each window, [windows].
using Cumulative = std::vector<int64_t>;

// Flows are summed over the boundaries of one home: within a home, first out is first sent and first due is
// first fetched, and neither costs more than any other order. So there is one variable per window and home,
// not per boundary and window, and only the homes are integers.
class CheckpointModel {
 public:
  CheckpointModel(const CheckpointProblem& problem, bool storage_may_wait);

  // False where a home has no budget.
  bool fix_homes(const std::vector<BoundaryHome>& homes);
  const Milp& program() const { return program_; }
  // Seconds of one unit of the program's objective.
  double seconds() const { return 1 / time_scale_; }
  CheckpointSchedule schedule(const std::vector<double>& values) const;

 private:
  struct EdgeVariable {
    int begin, end, variable;
  };
  struct Flow {                               // of one home away from the device
    std::vector<int> out, write, read, back;  // by window; kNone where there is none
    std::vector<int> waiting, staged;         // after a forward window: not yet sent, not yet written
    std::vector<int> early, fetched;          // after a backward window: not yet due, not yet sent up
  };
  using Homes = std::array<int, 4>;

  double size(int boundary) const;
  double recompute_seconds(int begin, int end) const;
  int add(double cost, double upper = kUnbounded, bool integer = false);
  void add_homes();
  void add_edges();
  void add_capacities();
  void add_outflow(BoundaryHome home);
  void add_inflow(BoundaryHome home);
  void add_links(bool storage_may_wait);
  void add_link(const TransferWindows& link, int first, int last, std::vector<int> Flow::*flow,
                bool may_wait);
  void add_forward_memory();
  void add_backward_memory();

  std::vector<int64_t> cumulative(const std::vector<int>& variables, const std::vector<double>& values,
                                  bool forward) const;
  void place_home(CheckpointSchedule& schedule, BoundaryHome home, const std::vector<double>& values) const;

  const CheckpointProblem& problem_;
  const int layers_;
  double unit_ = 1;        // bytes of one unit of the program's sizes
  double time_scale_ = 1;  // units of the program's objective in a second
  Milp program_;
  std::vector<BoundaryHome> away_;  // homes away from the device that the budgets allow
  std::vector<Homes> homes_;        // [boundary][home]: 1 if it is there
  std::map<BoundaryHome, std::vector<EdgeVariable>> edges_;  // by the home of their beginning
  std::map<BoundaryHome, Flow> flows_;
};

}  // namespace trainer
