// What a schedule costs and whether it is a feasible point, computed from its own bytes and windows: nothing
// here shares a formula with the program that found it.
#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "plan/checkpoint_plan.h"

namespace trainer {
namespace {

using TransferList = std::vector<WindowBytes> BoundaryPlacement::*;
// Of a budget: what the solver may be off by.
constexpr double kTolerance = 1e-6;

bool away(const BoundaryPlacement& b) {
  return b.home == BoundaryHome::kHost || b.home == BoundaryHome::kStorage;
}

double exposed(const CheckpointSchedule& schedule, TransferList list, const TransferWindows& link) {
  std::vector<int64_t> used(link.capacity.size());
  for (const BoundaryPlacement& b : schedule.boundaries)
    for (const WindowBytes& piece : b.*list) used.at(static_cast<size_t>(piece.window)) += piece.bytes;
  int64_t excess = 0;
  for (size_t w = 0; w < used.size(); ++w)
    excess += std::max<int64_t>(0, used[w] - link.spare(static_cast<int>(w)));
  return static_cast<double>(excess) / link.bytes_per_second;
}

double mandatory_excess(const TransferWindows& link) {
  int64_t excess = 0;
  for (size_t w = 0; w < link.capacity.size(); ++w) excess += link.mandatory_excess(static_cast<int>(w));
  return static_cast<double>(excess) / link.bytes_per_second;
}

class MemoryCheck {
 public:
  MemoryCheck(const CheckpointProblem& problem, const CheckpointSchedule& schedule)
      : problem_(problem), schedule_(schedule), layers_(problem.layers()) {}

  std::vector<std::string> run() {
    for (int w = 0; w < layers_; ++w)
      expect(problem_.device_bytes, forward(w), fmt::format("forward of layer {}", w));
    for (int w = layers_; w >= 0; --w)
      expect(problem_.device_bytes, backward(w),
             w == layers_ ? std::string("head") : fmt::format("backward of layer {}", w));
    for (const auto& [home, budget] : {std::pair(BoundaryHome::kDevice, problem_.device_bytes),
                                       std::pair(BoundaryHome::kHost, problem_.host_bytes),
                                       std::pair(BoundaryHome::kStorage, problem_.storage_bytes)}) {
      int64_t sum = 0;
      for (int i = 0; i <= layers_; ++i)
        if (at(i).home == home) sum += bytes(i);
      expect(budget, sum, fmt::format("boundaries in {} memory", name_of(home)));
    }
    return std::move(errors_);
  }

 private:
  int64_t bytes(int i) const { return problem_.boundary_bytes[static_cast<size_t>(i)]; }
  const BoundaryPlacement& at(int i) const { return schedule_.boundaries[static_cast<size_t>(i)]; }

  void expect(int64_t budget, int64_t need, const std::string& what) {
    const auto largest = *std::max_element(problem_.boundary_bytes.begin(), problem_.boundary_bytes.end());
    if (static_cast<double>(need) >
        static_cast<double>(budget) + kTolerance * static_cast<double>(std::max(budget, largest)))
      errors_.push_back(fmt::format("{}: {} bytes do not fit into {}", what, need, budget));
  }

  // Boundary i < w, kept away, while layer w runs forward: what has not left before window w.
  int64_t waiting(int i, int w) const {
    int64_t left = bytes(i);
    for (const WindowBytes& piece : at(i).device_to_host)
      if (piece.window < w) left -= piece.bytes;
    return left;
  }

  int64_t forward(int w) const {
    int64_t sum = bytes(w) + bytes(w + 1);
    for (int i = 0; i < w; ++i) {
      if (at(i).home == BoundaryHome::kDevice) sum += bytes(i);
      if (away(at(i))) sum += waiting(i, w);
    }
    return sum +
           (problem_.forward_workspace.empty() ? 0 : problem_.forward_workspace[static_cast<size_t>(w)]);
  }

  int64_t backward(int w) const {
    int64_t sum = 0;
    int edge_begin = w;
    while (!schedule_.kept(edge_begin)) --edge_begin;
    for (int i = 0; i <= w; ++i) {
      if (at(i).home == BoundaryHome::kDevice) sum += bytes(i);
      if (i > edge_begin && w < layers_) sum += bytes(i);  // recomputed
      if (away(at(i)))
        for (const WindowBytes& piece : at(i).host_to_device)
          if (piece.window >= w) sum += piece.bytes;
    }
    return sum +
           (problem_.backward_workspace.empty() ? 0 : problem_.backward_workspace[static_cast<size_t>(w)]);
  }

  const CheckpointProblem& problem_;
  const CheckpointSchedule& schedule_;
  const int layers_;
  std::vector<std::string> errors_;
};

}  // namespace

int64_t TransferWindows::spare(int window) const {
  const auto w = static_cast<size_t>(window);
  return std::max<int64_t>(0, capacity[w] - (mandatory.empty() ? 0 : mandatory[w]));
}

int64_t TransferWindows::mandatory_excess(int window) const {
  const auto w = static_cast<size_t>(window);
  return mandatory.empty() ? 0 : std::max<int64_t>(0, mandatory[w] - capacity[w]);
}

CheckpointPlanParts plan_parts(const CheckpointProblem& problem, const CheckpointSchedule& schedule) {
  CheckpointPlanParts parts;
  for (const auto& [begin, end] : schedule.edges())
    for (int j = begin; j < end - 1; ++j) parts.recompute += problem.forward_seconds[static_cast<size_t>(j)];
  const int kept = static_cast<int>(schedule.boundaries.size()) - schedule.count(BoundaryHome::kRecomputed);
  parts.tie_breaks =
      problem.checkpoint_price * kept + problem.storage_price * schedule.count(BoundaryHome::kStorage);
  parts.exposed_to_host = exposed(schedule, &BoundaryPlacement::device_to_host, problem.forward_to_host);
  parts.exposed_to_device = exposed(schedule, &BoundaryPlacement::host_to_device, problem.backward_to_device);
  parts.exposed_write = exposed(schedule, &BoundaryPlacement::storage_write, problem.storage_write);
  parts.exposed_read = exposed(schedule, &BoundaryPlacement::storage_read, problem.storage_read);
  parts.mandatory_forward =
      mandatory_excess(problem.forward_to_host) + mandatory_excess(problem.forward_to_device);
  parts.mandatory_backward =
      mandatory_excess(problem.backward_to_host) + mandatory_excess(problem.backward_to_device);
  return parts;
}

std::vector<std::string> plan_errors(const CheckpointProblem& problem, const CheckpointSchedule& schedule) {
  std::vector<std::string> errors = structural_errors(schedule, problem.boundary_bytes);
  if (!errors.empty()) return errors;
  for (const auto& [begin, end] : schedule.edges())
    if (problem.longest_edge > 0 && end - begin > problem.longest_edge)
      errors.push_back(fmt::format("edge {} to {} is longer than {}", begin, end, problem.longest_edge));
  for (std::string& error : MemoryCheck(problem, schedule).run()) errors.push_back(std::move(error));
  return errors;
}

}  // namespace trainer
