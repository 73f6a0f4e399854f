#include "plan/sequence_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"

namespace trainer {
namespace {

// fp16 bytes a token and hidden unit: keys, values and the accumulators of their gradients; what may be
// offloaded.
constexpr double kResidentBytes = 8, kOffloadableBytes = 34;

std::vector<int64_t> lengths_of(const std::vector<int64_t>& cuts) {
  std::vector<int64_t> lengths;
  for (size_t i = 1; i < cuts.size(); ++i) lengths.push_back(cuts[i] - cuts[i - 1]);
  return lengths;
}

}  // namespace

std::vector<int64_t> balanced_segments(int64_t sequence, int64_t hidden, int count, int64_t multiple) {
  const auto s = static_cast<double>(sequence), h = static_cast<double>(hidden);
  std::vector<int64_t> cuts{0};
  for (int i = 1; i < count; ++i) {
    const double share = static_cast<double>(i) / count;
    const double t = -6 * h + std::sqrt(36 * h * h + share * (s * s + 12 * h * s));
    cuts.push_back(std::llround(t / static_cast<double>(multiple)) * multiple);
  }
  cuts.push_back(sequence);
  for (size_t i = 1; i < cuts.size(); ++i)
    if (cuts[i] <= cuts[i - 1])
      input_error("{} segments of {} tokens in multiples of {}: segment {} would be empty; use fewer", count,
                  sequence, multiple, i - 1);
  return lengths_of(cuts);
}

std::vector<int64_t> balance_measured(const std::vector<int64_t>& seed, int64_t multiple,
                                      const SegmentSeconds& seconds) {
  const int64_t sequence = std::accumulate(seed.begin(), seed.end(), int64_t{0});
  // Segments as long as the bound allows; empty when they do not reach the end.
  const auto fill = [&](double bound) {
    std::vector<int64_t> cuts{0};
    for (size_t i = 0; i < seed.size() && cuts.back() < sequence; ++i) {
      const int64_t begin = cuts.back();
      int64_t low = 0, high = (sequence - begin + multiple - 1) / multiple;
      while (low < high) {
        const int64_t middle = (low + high + 1) / 2;
        const int64_t end = std::min(begin + middle * multiple, sequence);
        // Enough must be left that no later segment is empty.
        const auto rest = static_cast<int64_t>(seed.size() - i - 1);
        if (seconds(begin, end) <= bound && (sequence - end) >= rest)
          low = middle;
        else
          high = middle - 1;
      }
      if (low == 0) return std::vector<int64_t>{};
      cuts.push_back(std::min(begin + low * multiple, sequence));
    }
    return cuts.back() == sequence && cuts.size() == seed.size() + 1 ? cuts : std::vector<int64_t>{};
  };
  double high = 0, low = 0;
  std::vector<int64_t> best{0};
  for (int64_t length : seed) {
    high = std::max(high, seconds(best.back(), best.back() + length));
    best.push_back(best.back() + length);
  }
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    auto cuts = fill(middle);
    if (cuts.empty()) {
      low = middle;
    } else {
      best = std::move(cuts);
      high = middle;
    }
  }
  return lengths_of(best);
}

std::vector<ActivationUnit> activation_units(const std::vector<LayerCatalogue>& layers,
                                             const std::vector<int64_t>& segments) {
  const int64_t sequence = std::accumulate(segments.begin(), segments.end(), int64_t{0});
  const int count = static_cast<int>(segments.size());
  std::vector<ActivationUnit> units;
  for (size_t l = 0; l < layers.size(); ++l)
    for (int s = 0; s < count; ++s)
      for (bool resident : {true, false}) {
        ActivationUnit unit{static_cast<int>(l), s, resident, 0, s, 2 * count - 1 - s};
        for (const SavedTensor& tensor : layers[l].saved)
          if ((tensor.reuse == ReuseClass::kLaterSegment) == resident)
            unit.bytes += tensor.bytes * segments[static_cast<size_t>(s)] / sequence;
        if (unit.bytes > 0) units.push_back(unit);
      }
  return units;
}

OffloadPlan evaluate_offload(const OffloadProblem& problem, const std::vector<double>& share) {
  OffloadPlan plan;
  plan.share = share;
  double held = problem.resident, pending = 0;
  for (size_t i = 0; i < problem.bytes.size(); ++i) {
    held += problem.bytes[i];
    if (i > 0) {
      pending += share[i - 1] * problem.bytes[i - 1];
      const double copied = std::min(pending, problem.bandwidth * problem.seconds[i]);
      held -= copied;
      pending -= copied;
      plan.exposed +=
          std::max(0.0, share[i - 1] * problem.bytes[i - 1] / problem.bandwidth - problem.seconds[i]);
    }
    plan.memory.push_back(held);
    plan.peak = std::max(plan.peak, held);
  }
  return plan;
}

std::optional<OffloadPlan> plan_offload(const OffloadProblem& problem) {
  const size_t count = problem.bytes.size();
  require(count == problem.seconds.size() && count > 0, "{} segments, {} times", count,
          problem.seconds.size());
  // The last segment's backward follows at once. Where the compute waits for a copy that is not through, its
  // memory is free by then, so exposed copies count as done.
  const auto with_threshold = [&](double threshold) {
    std::vector<double> share(count, 0.0);
    OffloadProblem waits = problem;
    for (size_t i = 0; i + 1 < count; ++i) {
      share[i] = problem.bytes[i] > 0 ? std::min(1.0, threshold / problem.bytes[i]) : 0;
      waits.seconds[i + 1] =
          std::max(problem.seconds[i + 1], share[i] * problem.bytes[i] / problem.bandwidth);
    }
    OffloadPlan plan = evaluate_offload(waits, share);
    plan.exposed = evaluate_offload(problem, share).exposed;
    plan.threshold = threshold;
    return plan;
  };
  OffloadPlan plan = with_threshold(0);
  if (plan.peak <= problem.budget) return plan;
  double hidden = std::numeric_limits<double>::infinity();
  for (size_t i = 1; i < count; ++i) hidden = std::min(hidden, problem.bandwidth * problem.seconds[i]);
  plan = with_threshold(hidden);
  if (plan.peak <= problem.budget) return plan;
  double low = hidden, high = *std::max_element(problem.bytes.begin(), problem.bytes.end());
  if (with_threshold(high).peak > problem.budget) return std::nullopt;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (with_threshold(middle).peak <= problem.budget ? high : low) = middle;
  }
  return with_threshold(high);
}

double sequence_bubble_ratio(int stages, int segments) { return static_cast<double>(stages - 1) / segments; }

double sequence_pipeline_seconds(int stages, int segments, double seconds) {
  return seconds * (1 + sequence_bubble_ratio(stages, segments));
}

std::vector<SequencePlan> plan_sequences(const SequenceModel& m) {
  const auto h = static_cast<double>(m.hidden), s = static_cast<double>(m.sequence);
  std::vector<SequencePlan> plans;
  for (int sp = 1; sp <= m.devices; ++sp) {
    const int pp = m.devices / sp;
    if (sp * pp != m.devices || pp > m.layers) continue;
    for (int n = 1; n <= 1024; n *= 2) {
      const double tokens = s / n / sp;
      if (n < pp - 1 || tokens < 2048 || tokens > 16384) continue;
      SequencePlan plan;
      plan.sequence_parallel = sp;
      plan.stages = pp;
      plan.segments = n;
      plan.lengths = balanced_segments(m.sequence, m.hidden, n, m.multiple);
      // 24 h^2 a token and 2 h t for attention; backward takes twice as long.
      const double forward = m.layers * (24 * h * h * s + 2 * h * s * s);
      const double speed = m.flops_per_second * tokens / (tokens + static_cast<double>(m.half_speed_tokens));
      plan.compute = 3 * forward / (speed * m.devices);
      plan.bubble = sequence_pipeline_seconds(pp, n, plan.compute) - plan.compute;
      const double stage_layers = std::ceil(static_cast<double>(m.layers) / pp);
      OffloadProblem offload;
      for (int64_t length : plan.lengths) {
        offload.bytes.push_back(kOffloadableBytes * static_cast<double>(length) * h * stage_layers / sp);
        offload.seconds.push_back(plan.compute / 3 / n);
      }
      offload.bandwidth = m.host_bandwidth;
      offload.resident = kResidentBytes * s * h * stage_layers / sp;
      offload.budget = m.device_memory;
      const auto found = plan_offload(offload);
      if (!found) continue;
      plan.offload = *found;
      plan.exposed = 2 * plan.offload.exposed;  // down in forward, up in backward
      // Sequence parallelism gathers and scatters each layer's activations twice each way; boundaries move
      // once.
      const double sp_bandwidth = sp > m.devices_per_node ? m.network_bandwidth : m.node_bandwidth;
      const double pp_bandwidth = m.devices > m.devices_per_node ? m.network_bandwidth : m.node_bandwidth;
      plan.exchange = 8 * 2 * s * h * stage_layers * (sp - 1) / sp / sp_bandwidth;
      if (pp > 1) plan.exchange += 2 * 2 * s * h / sp / pp_bandwidth / n;
      plans.push_back(std::move(plan));
    }
  }
  std::stable_sort(plans.begin(), plans.end(),
                   [](const SequencePlan& a, const SequencePlan& b) { return a.seconds() < b.seconds(); });
  return plans;
}

}  // namespace trainer
