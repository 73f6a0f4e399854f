// Which layer boundaries one device keeps, recomputes or sends away when weights stream through it:
// LazyTrain's mixed-integer program (section 4, equations 1 to 7) with its gaps closed. Transfers have
// windows of the forward and of the backward pass, a reload is complete before the recompute of its edge
// begins, and device memory is held at every layer of both passes, recompute workspace and bytes in flight
// included. Bytes take a window for each hop: what reaches host memory in one goes on to storage, or up from
// it, in a later one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/milp.h"
#include "schedule/checkpoint_schedule.h"

namespace trainer {

// One direction of one link, by window. What it must carry anyway comes first; only the rest is planned for.
struct TransferWindows {
  double bytes_per_second = 1;
  std::vector<int64_t> capacity;   // bytes that fit under the window's computation
  std::vector<int64_t> mandatory;  // parameters or gradients that move in the window; empty: none

  int64_t spare(int window) const;
  int64_t mandatory_excess(int window) const;
};

// L = layers. Forward windows are [L]; backward windows [L + 1], the last being the head's, between the
// passes. Recompute is not counted as time to transfer in.
struct CheckpointProblem {
  std::vector<int64_t> boundary_bytes;  // A_i, [L + 1]
  std::vector<double> forward_seconds;  // rho_j of layer j, from boundary j to j + 1, [L]
  // For boundaries only: parameters, gradients and optimizer state are taken off before. Staging buffers
  // between host and storage are not counted against the host.
  int64_t device_bytes = 0, host_bytes = 0, storage_bytes = 0;  // M_G, M_C, M_N
  std::vector<int64_t> forward_workspace;   // beside a layer's input and output, [L]; empty: none
  std::vector<int64_t> backward_workspace;  // beside a layer's input, [L + 1]; empty: none

  TransferWindows forward_to_host;     // boundaries leave; nothing mandatory as a rule
  TransferWindows forward_to_device;   // parameters only: reported, never planned
  TransferWindows backward_to_host;    // gradients only: reported, never planned
  TransferWindows backward_to_device;  // parameters; boundaries come back
  TransferWindows storage_write;       // forward windows
  TransferWindows storage_read;        // backward windows

  // Tie-breaks: of equally fast plans the one with fewer kept boundaries, then fewer in storage.
  double checkpoint_price = 1e-8, storage_price = 1e-6;  // seconds each
  int longest_edge = 0;                                  // in layers; 0: any

  int layers() const { return static_cast<int>(forward_seconds.size()); }
};

// Seconds; the objective is the sum of all but `mandatory`, which no plan changes.
struct CheckpointPlanParts {
  double recompute = 0, tie_breaks = 0;
  double exposed_to_host = 0, exposed_to_device = 0, exposed_write = 0, exposed_read = 0;
  double mandatory_forward = 0, mandatory_backward = 0;
  double objective() const {
    return recompute + tie_breaks + exposed_to_host + exposed_to_device + exposed_write + exposed_read;
  }
};

struct CheckpointPlan {
  MilpStatus status = MilpStatus::kNoSolution;
  CheckpointSchedule schedule;  // with a solution only
  CheckpointPlanParts parts;
  double best_bound = 0;  // seconds: no plan is better
  double gap = 0;         // (objective - bound) / objective

  bool has_schedule() const { return status == MilpStatus::kOptimal || status == MilpStatus::kFeasible; }
};

// Storage is used only where its transfers hide behind computation, unless there is no plan without.
CheckpointPlan plan_checkpoints(const CheckpointProblem& problem, const MilpOptions& options = {});

// The best windows for given homes [L + 1]; infeasible where these do not fit.
CheckpointPlan plan_windows(const CheckpointProblem& problem, const std::vector<BoundaryHome>& homes,
                            const MilpOptions& options = {});

// What a schedule costs, from its bytes and windows alone.
CheckpointPlanParts plan_parts(const CheckpointProblem& problem, const CheckpointSchedule& schedule);

// Which constraints a schedule breaks, one sentence each; empty: it is a feasible point.
std::vector<std::string> plan_errors(const CheckpointProblem& problem, const CheckpointSchedule& schedule);

// Layers whose forward runs again: kept boundaries need none.
int recomputed_layers(const CheckpointSchedule& schedule);

// Status, gap, parts and schedule.
Json to_json(const CheckpointPlan& plan);

}  // namespace trainer
