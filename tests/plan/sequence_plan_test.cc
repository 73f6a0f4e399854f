#include "plan/sequence_plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"

namespace trainer {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double flops(int64_t hidden, int64_t begin, int64_t end) {
  const auto of = [&](int64_t t) { return static_cast<double>(t) * static_cast<double>(t + 12 * hidden); };
  return of(end) - of(begin);
}

TEST(SequenceSplit, SegmentsHaveEqualFlops) {
  for (int count : {1, 4, 8, 32}) {
    const auto lengths = balanced_segments(131072, 8192, count, 1);
    int64_t begin = 0;
    for (int64_t length : lengths) {
      EXPECT_NEAR(flops(8192, begin, begin + length) / flops(8192, 0, 131072), 1.0 / count, 1e-4);
      begin += length;
    }
    EXPECT_EQ(begin, 131072);
  }
}

// 65B (h = 8192) at 128K tokens.
TEST(SequenceSplit, FirstOverLastSegment) {
  for (const auto& [count, expected] : {std::pair{8, 2.74}, std::pair{16, 3.10}}) {
    const auto lengths = balanced_segments(128 * 1024, 8192, count, 1);
    EXPECT_NEAR(static_cast<double>(lengths.front()) / static_cast<double>(lengths.back()), expected, 0.011);
  }
}

TEST(SequenceSplit, CutsAtTiles) {
  const auto lengths = balanced_segments(100000, 1024, 8, 128);
  EXPECT_EQ(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}), 100000);
  for (size_t i = 0; i + 1 < lengths.size(); ++i) EXPECT_EQ(lengths[i] % 128, 0);
  EXPECT_THROW(balanced_segments(1024, 64, 16, 128), InputError);
}

// Brute force over all cuts in tiles.
double fastest_cut(int64_t begin, int64_t sequence, int count, int64_t multiple,
                   const SegmentSeconds& seconds) {
  if (count == 1) return seconds(begin, sequence);
  double best = kInfinity;
  for (int64_t end = begin + multiple; end < sequence; end += multiple)
    best = std::min(best,
                    std::max(seconds(begin, end), fastest_cut(end, sequence, count - 1, multiple, seconds)));
  return best;
}

TEST(SequenceSplit, MeasuredTimesMoveTheCuts) {
  const SegmentSeconds seconds = [](int64_t begin, int64_t end) {
    return 50 + static_cast<double>(end - begin) * (100 + 0.7 * static_cast<double>(begin + end));
  };
  for (int count : {1, 2, 3, 4}) {
    const auto seed = balanced_segments(1500, 64, count, 100);
    const auto found = balance_measured(seed, 100, seconds);
    ASSERT_EQ(found.size(), static_cast<size_t>(count));
    double slowest = 0;
    int64_t begin = 0;
    for (int64_t length : found) {
      slowest = std::max(slowest, seconds(begin, begin + length));
      begin += length;
    }
    EXPECT_EQ(begin, 1500);
    EXPECT_NEAR(slowest, fastest_cut(0, 1500, count, 100, seconds), 1e-6);
  }
}

TEST(ActivationUnits, KeysAndValuesStay) {
  LayerCatalogue layer;
  layer.saved = {{"q", 800, 1, ReuseClass::kBackward},
                 {"k", 400, 1, ReuseClass::kLaterSegment},
                 {"v", 400, 1, ReuseClass::kLaterSegment},
                 {"mlp", 3200, 1, ReuseClass::kBackward}};
  const auto units = activation_units({layer, layer}, {6, 2});
  ASSERT_EQ(units.size(), 8u);
  EXPECT_TRUE(units[0].resident);
  EXPECT_EQ(units[0].bytes, 600);
  EXPECT_EQ(units[1].bytes, 3000);
  EXPECT_EQ(units[2].bytes, 200);
  EXPECT_EQ(units[3].bytes, 1000);
  EXPECT_EQ(units[1].first_use, 0);
  EXPECT_EQ(units[1].last_use, 3);
  EXPECT_EQ(units[3].last_use, 2);
  EXPECT_EQ(units[7].layer, 1);
}

TEST(Offload, SanityExample) {
  OffloadProblem p;
  p.bytes = {50, 70, 1};
  p.seconds = {1, 1, 1};
  p.bandwidth = 40;
  p.resident = 20;
  p.budget = 100;
  const auto plan = plan_offload(p);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->threshold, 40);
  EXPECT_NEAR(plan->share[0], 0.8, 1e-12);
  EXPECT_NEAR(plan->share[1], 0.5714, 1e-4);
  EXPECT_NEAR(plan->memory[1], 100, 1e-9);
  EXPECT_EQ(plan->exposed, 0);
}

OffloadProblem shrinking_segments() {
  OffloadProblem p;
  p.bytes = {10.59, 8, 6.5, 5.5, 4.8, 4, 3.4, 2.87};
  p.seconds.assign(8, 0.36);
  p.bandwidth = 12;
  p.resident = 4;
  p.budget = 36;
  return p;
}

// M_i = M_{i-1} + A_i - alpha_{i-1} A_{i-1}.
TEST(Offload, MemoryFollowsTheRecursion) {
  const OffloadProblem p = shrinking_segments();
  const auto plan = plan_offload(p);
  ASSERT_TRUE(plan);
  double held = p.resident;
  for (size_t i = 0; i < p.bytes.size(); ++i) {
    held += p.bytes[i] - (i > 0 ? plan->share[i - 1] * p.bytes[i - 1] : 0);
    EXPECT_NEAR(plan->memory[i], held, 1e-9);
  }
  EXPECT_NEAR(plan->threshold, 4.32, 1e-12);
  EXPECT_NEAR(plan->share[0], 0.41, 0.005);
  // Longer segments come first, so shares grow.
  for (size_t i = 1; i + 1 < p.bytes.size(); ++i) EXPECT_GE(plan->share[i], plan->share[i - 1]);
}

TEST(Offload, EnoughMemoryOffloadsNothing) {
  OffloadProblem p = shrinking_segments();
  p.budget = kInfinity;
  const auto plan = plan_offload(p);
  ASSERT_TRUE(plan);
  for (double share : plan->share) EXPECT_EQ(share, 0);
  EXPECT_EQ(plan->exposed, 0);
}

TEST(Offload, InfiniteBandwidthKeepsOneSegmentAndKeysAndValues) {
  OffloadProblem p = shrinking_segments();
  p.bandwidth = kInfinity;
  const auto plan = plan_offload(p);
  ASSERT_TRUE(plan);
  for (size_t i = 0; i + 1 < plan->share.size(); ++i) EXPECT_EQ(plan->share[i], 1);
  EXPECT_NEAR(plan->peak, p.resident + p.bytes[0], 1e-9);
  EXPECT_EQ(plan->exposed, 0);
}

TEST(Offload, TightMemoryExposesCopiesAndTooTightIsRefused) {
  OffloadProblem p = shrinking_segments();
  const double hidden = plan_offload(p)->peak;
  p.budget = hidden - 3;
  const auto plan = plan_offload(p);
  ASSERT_TRUE(plan);
  EXPECT_LE(plan->peak, p.budget + 1e-9);
  EXPECT_GT(plan->peak, p.budget - 1e-6);  // and no more than needed
  EXPECT_GT(plan->exposed, 0);
  p.budget = p.resident + p.bytes[0] - 0.1;
  EXPECT_FALSE(plan_offload(p));
}

TEST(Offload, CopiesThatOverrunStillHoldTheirMemory) {
  OffloadProblem p;
  p.bytes = {10, 10, 10};
  p.seconds = {1, 1, 1};
  p.bandwidth = 4;
  const OffloadPlan plan = evaluate_offload(p, {1, 0, 0});
  EXPECT_EQ(plan.memory, (std::vector<double>{10, 16, 22}));
  EXPECT_NEAR(plan.exposed, 1.5, 1e-12);
}

TEST(SequencePipeline, BubbleFormulas) {
  EXPECT_EQ(sequence_bubble_ratio(4, 16), 3.0 / 16);
  EXPECT_NEAR(sequence_pipeline_seconds(4, 16, 32), (4 - 1 + 16) * 32.0 / 16, 1e-12);
}

TEST(SequencePlans, AreFeasibleAndSorted) {
  SequenceModel m;
  m.layers = 32;
  m.hidden = 4096;
  m.sequence = 524288;
  m.devices = 32;
  m.flops_per_second = 150e12;
  m.node_bandwidth = 200e9;
  m.network_bandwidth = 25e9;
  m.host_bandwidth = 12e9;
  m.device_memory = 60e9;
  const auto plans = plan_sequences(m);
  ASSERT_FALSE(plans.empty());
  for (size_t i = 0; i < plans.size(); ++i) {
    const SequencePlan& p = plans[i];
    EXPECT_EQ(p.sequence_parallel * p.stages, m.devices);
    EXPECT_LE(p.offload.peak, m.device_memory);
    EXPECT_EQ(std::accumulate(p.lengths.begin(), p.lengths.end(), int64_t{0}), m.sequence);
    if (i > 0) {
      EXPECT_GE(p.seconds(), plans[i - 1].seconds());
    }
  }
  // Of the plans within the nodes; the network makes wider groups dear.
  EXPECT_LE(plans.front().sequence_parallel, m.devices_per_node);
  m.device_memory = 1e9;
  EXPECT_TRUE(plan_sequences(m).empty());
}

}  // namespace
}  // namespace trainer
