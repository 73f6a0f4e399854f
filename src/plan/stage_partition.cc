#include "plan/stage_partition.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "base/error.h"

namespace trainer {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Sums of the same times in another order are the same time.
constexpr double kTolerance = 1e-12;

double backward_seconds(const StageLayerCost& layer) { return layer.forward + layer.backward; }
int64_t backward_bytes(const StageLayerCost& layer) { return layer.weight_bytes + layer.gradient_bytes; }

// Layers to be cut into stages: their times and bytes in the order in which the stages follow from above.
struct Chain {
  std::vector<double> seconds;
  std::vector<int64_t> bytes;
};

struct Limits {
  double seconds;
  int64_t bytes;  // 0: none
  bool allow(double s, int64_t b) const {
    return s <= seconds * (1 + kTolerance) && (bytes == 0 || b <= bytes);
  }
};

// How many layers from `begin` on fit into one stage.
int fitting(const Chain& chain, size_t begin, const Limits& limits) {
  double seconds = 0;
  int64_t bytes = 0;
  size_t end = begin;
  for (; end < chain.seconds.size(); ++end) {
    seconds += chain.seconds[end];
    bytes += chain.bytes[end];
    if (!limits.allow(seconds, bytes)) break;
  }
  return static_cast<int>(end - begin);
}

// The least number of stages; empty when a layer does not fit alone.
std::optional<int> least_stages(const Chain& chain, const Limits& limits) {
  int stages = 0;
  for (size_t begin = 0; begin < chain.seconds.size(); ++stages) {
    const int count = fitting(chain, begin, limits);
    if (count == 0) return std::nullopt;
    begin += static_cast<size_t>(count);
  }
  return stages;
}

// The cut into `stages` stages within the limits that has the least sum of squared times; of equal ones that
// with the larger stages first.
std::vector<int> most_even(const Chain& chain, int stages, const Limits& limits) {
  const size_t layers = chain.seconds.size();
  // best[k][i]: cost of layers i.. in k stages.
  std::vector<std::vector<double>> best(static_cast<size_t>(stages) + 1,
                                        std::vector<double>(layers + 1, kInfinity));
  auto take = std::vector<std::vector<int>>(best.size(), std::vector<int>(layers + 1));
  best[0][layers] = 0;
  for (size_t k = 1; k < best.size(); ++k)
    for (size_t i = 0; i < layers; ++i) {
      double seconds = 0;
      for (int n = 1; n <= fitting(chain, i, limits); ++n) {
        seconds += chain.seconds[i + static_cast<size_t>(n) - 1];
        const double cost = seconds * seconds + best[k - 1][i + static_cast<size_t>(n)];
        if (cost > best[k][i] * (1 + kTolerance)) continue;
        best[k][i] = std::min(best[k][i], cost);
        take[k][i] = n;
      }
    }
  std::vector<int> counts;
  size_t at = 0;
  for (size_t k = static_cast<size_t>(stages); k > 0; --k) {
    counts.push_back(take[k][at]);
    at += static_cast<size_t>(counts.back());
  }
  return counts;
}

class Partitioner {
 public:
  explicit Partitioner(const PartitionProblem& problem) : problem_(problem) {
    if (problem.layers.empty())
      input_error("partition: the model has no layers; the last one must be the head");
    for (auto layer = problem.layers.rbegin(); layer != problem.layers.rend(); ++layer) {
      forward_.seconds.push_back(layer->forward);
      forward_.bytes.push_back(layer->weight_bytes);
      backward_.seconds.push_back(backward_seconds(*layer));
      backward_.bytes.push_back(backward_bytes(*layer));
    }
    memory_ = problem.memory_limit;
    const int64_t largest = *std::max_element(backward_.bytes.begin(), backward_.bytes.end());
    raised_ = memory_ > 0 && largest > memory_;
    if (raised_) memory_ = largest;
  }

  StagePartition run() const {
    StagePartition best;
    best.objective = kInfinity;
    for (double bound : bounds()) {
      const Limits limits{bound, memory_};
      const auto fused = static_cast<size_t>(fitting(backward_, 0, limits));
      if (fused == 0) continue;
      const Chain forward = rest(forward_, fused), backward = rest(backward_, fused);
      const auto forwards = least_stages(forward, limits), backwards = least_stages(backward, limits);
      if (!forwards || !backwards) continue;
      const double objective = partition_objective(problem_, *forwards + 1 + *backwards, bound);
      if (objective >= best.objective * (1 - kTolerance)) continue;
      best.objective = objective;
      best.forward = most_even(forward, *forwards, limits);
      std::reverse(best.forward.begin(), best.forward.end());
      best.backward = {static_cast<int>(fused)};
      for (int count : most_even(backward, *backwards, limits)) best.backward.push_back(count);
    }
    require(best.objective < kInfinity, "no bound allows a partition");
    best.slowest = slowest_stage(problem_, best.forward, best.backward);
    best.limit_raised = raised_;
    return best;
  }

 private:
  static Chain rest(const Chain& chain, size_t from) {
    const auto skip = static_cast<std::ptrdiff_t>(from);
    return {{chain.seconds.begin() + skip, chain.seconds.end()},
            {chain.bytes.begin() + skip, chain.bytes.end()}};
  }

  // Every time that a stage can have, ascending.
  std::vector<double> bounds() const {
    std::vector<double> all;
    for (const Chain* chain : {&forward_, &backward_})
      for (size_t i = 0; i < chain->seconds.size(); ++i) {
        double sum = 0;
        for (size_t j = i; j < chain->seconds.size(); ++j) all.push_back(sum += chain->seconds[j]);
      }
    if (problem_.objective == PartitionObjective::kSlowestLayer) {
      const double slowest = *std::max_element(backward_.seconds.begin(), backward_.seconds.end());
      std::erase_if(all, [&](double t) {
        return t < slowest * (1 - kTolerance) || t > 1.1 * slowest * (1 + kTolerance);
      });
    }
    std::sort(all.begin(), all.end());
    const auto same = [](double a, double b) { return b <= a * (1 + kTolerance); };
    all.erase(std::unique(all.begin(), all.end(), same), all.end());
    return all;
  }

  const PartitionProblem& problem_;
  Chain forward_, backward_;  // head first
  int64_t memory_ = 0;
  bool raised_ = false;
};

}  // namespace

StagePartition partition_stages(const PartitionProblem& problem) { return Partitioner(problem).run(); }

double partition_objective(const PartitionProblem& problem, int stages, double slowest) {
  if (problem.objective == PartitionObjective::kSlowestLayer)
    return std::max(stages, problem.least_stages) * slowest;
  return (static_cast<double>(problem.micro_batches) * stages + problem.devices * (problem.devices - 1)) *
         slowest;
}

double slowest_stage(const PartitionProblem& problem, const std::vector<int>& forward,
                     const std::vector<int>& backward) {
  double slowest = 0;
  size_t at = 0;
  for (int count : forward) {
    double seconds = 0;
    for (int i = 0; i < count; ++i) seconds += problem.layers[at++].forward;
    slowest = std::max(slowest, seconds);
  }
  at = problem.layers.size();
  for (int count : backward) {
    double seconds = 0;
    for (int i = 0; i < count; ++i) seconds += backward_seconds(problem.layers[--at]);
    slowest = std::max(slowest, seconds);
  }
  require(at == 0, "the backward stages leave {} layers out", at);
  return slowest;
}

DispatchStages dispatch_stages(const std::vector<int>& forward, const std::vector<int>& backward) {
  DispatchStages stages;
  int next = 0;
  for (int count : forward) {
    const int end = (next == 0 ? 1 : next) + count;
    stages.forward.push_back({next, end});
    next = end;
  }
  next = 1 + std::accumulate(backward.begin(), backward.end(), 0);
  for (int count : backward) {
    stages.backward.push_back({next - count, next});
    next -= count;
  }
  stages.backward.back().begin = 0;
  return stages;
}

}  // namespace trainer
