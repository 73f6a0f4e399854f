#include "plan/timed_pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "plan/roundpipe_published.h"

namespace trainer {
namespace {

double percent(double share) { return 100 * share; }

class RoundPipeOracle : public ::testing::TestWithParam<int> {
 protected:
  const RoundPipePublished& published() const {
    return roundpipe_published()[static_cast<size_t>(GetParam())];
  }
  double bubble(PipelineSchedule schedule, const std::vector<int>& stages) const {
    return percent(
        time_pipeline(published().model, schedule, stages, kRoundPipeDevices, kRoundPipeMicroBatches)
            .bubble());
  }
};

// Half a unit of the last published digit.
TEST_P(RoundPipeOracle, OneFOneB) {
  EXPECT_NEAR(bubble(PipelineSchedule::kOneFOneB, published().pipeline), published().one_f_one_b, 0.0051);
}
TEST_P(RoundPipeOracle, Gpipe) {
  EXPECT_NEAR(bubble(PipelineSchedule::kGpipe, published().pipeline), published().gpipe, 0.0051);
}
TEST_P(RoundPipeOracle, Interleaved) {
  EXPECT_NEAR(bubble(PipelineSchedule::kInterleaved1F1B, published().looped), published().interleaved,
              0.0051);
}
TEST_P(RoundPipeOracle, LoopedBfs) {
  EXPECT_NEAR(bubble(PipelineSchedule::kLoopedBfs, published().looped), published().looped_bfs, 0.0051);
}
TEST_P(RoundPipeOracle, RoundRobin) {
  const RoundPipePublished& p = published();
  RoundRobinTiming timing;
  timing.fused_forward_waits = false;
  const ScheduleTimes t = time_round_robin(p.model, p.forward, p.backward_with_head(), kRoundPipeDevices,
                                           kRoundPipeMicroBatches, timing);
  EXPECT_NEAR(t.makespan, p.makespan, 0.00051);
  EXPECT_NEAR(percent(t.bubble()), p.sync, 0.0051);
  EXPECT_NEAR(percent(t.inner_bubble()), p.async, 0.0051);
}

INSTANTIATE_TEST_SUITE_P(Models, RoundPipeOracle, ::testing::Range(0, 5));

// Serial recurrence over the same rules, without step graphs.
double round_robin_makespan(const TimedModel& m, const std::vector<int>& forward,
                            const std::vector<int>& backward, int devices, int micro_batches) {
  std::vector<double> free(static_cast<size_t>(devices));
  int turn = 0;
  for (int round = 0; round < micro_batches / devices; ++round) {
    std::vector<double> arrived(static_cast<size_t>(devices));
    for (size_t s = 0; s < forward.size() + backward.size(); ++s, ++turn) {
      double& device = free[static_cast<size_t>(turn % devices)];
      const double hop = s > 0 && devices > 1 ? m.hop : 0;
      for (double& micro_batch : arrived) {
        if (s < forward.size()) {
          device = std::max(device, micro_batch + hop) + forward[s] * m.forward;
        } else if (s == forward.size()) {
          const int blocks = backward[0] - 1;
          device = std::max(device, micro_batch + hop) + blocks * (m.forward + m.backward) + m.head_forward +
                   m.head_backward;
        } else {
          const int blocks = backward[s - forward.size()];
          device = std::max(device + blocks * m.forward, micro_batch + hop) + blocks * m.backward;
        }
        micro_batch = device;
      }
    }
  }
  return *std::max_element(free.begin(), free.end());
}

TEST(TimedPipeline, RoundRobinEqualsARecurrence) {
  for (const RoundPipePublished& p : roundpipe_published())
    EXPECT_NEAR(time_round_robin(p.model, p.forward, p.backward_with_head(), kRoundPipeDevices,
                                 kRoundPipeMicroBatches)
                    .makespan,
                round_robin_makespan(p.model, p.forward, p.backward_with_head(), kRoundPipeDevices,
                                     kRoundPipeMicroBatches),
                1e-6)
        << p.name;
  const TimedModel model{7, 2, 3, 1, 4, 0.5};
  for (int devices : {1, 2, 3})
    EXPECT_NEAR(time_round_robin(model, {3, 2}, {3, 2, 3}, devices, 6).makespan,
                round_robin_makespan(model, {3, 2}, {3, 2, 3}, devices, 6), 1e-9)
        << devices;
}

// (P - 1) / (kRoundPipeMicroBatches + P - 1) where all stages and directions take the same and hops nothing.
TEST(TimedPipeline, IdealBubbles) {
  const TimedModel model{8, 1, 0, 0, 0, 0};  // a backward is one recomputation
  for (PipelineSchedule schedule : {PipelineSchedule::kOneFOneB, PipelineSchedule::kGpipe}) {
    const ScheduleTimes t = time_pipeline(model, schedule, {2, 2, 2, 2}, 4, 8);
    EXPECT_NEAR(t.bubble(), 3.0 / 11, 1e-12);
    EXPECT_NEAR(t.busy, 4 * 8 * 4, 1e-9);
  }
  for (PipelineSchedule schedule : {PipelineSchedule::kInterleaved1F1B, PipelineSchedule::kLoopedBfs})
    EXPECT_NEAR(time_pipeline(model, schedule, {1, 1, 1, 1, 1, 1, 1, 1}, 4, 8).bubble(), 3.0 / 19, 1e-12);
  // Round-robin: kRoundPipeDevices (kRoundPipeDevices - 1) / (kRoundPipeMicroBatches S + kRoundPipeDevices
  // (kRoundPipeDevices - 1)).
  const ScheduleTimes t = time_round_robin({6, 1, 1, 1, 1, 0}, {2, 2, 2}, {1, 1, 1, 1, 1, 1, 1}, 4, 8);
  EXPECT_NEAR(t.makespan, (8 * 10 + 4 * 3) * 2.0 / 4, 1e-9);
}

// With updates a step behind, a step costs less than alone, but more than its work.
TEST(TimedPipeline, DelayedUpdatesOverlapSteps) {
  const RoundPipePublished& p = roundpipe_published()[0];
  const auto backward = p.backward_with_head();
  const ScheduleTimes alone =
      time_round_robin(p.model, p.forward, backward, kRoundPipeDevices, kRoundPipeMicroBatches);
  const double delayed =
      steady_step_seconds(p.model, p.forward, backward, kRoundPipeDevices, kRoundPipeMicroBatches, true);
  const double prompt =
      steady_step_seconds(p.model, p.forward, backward, kRoundPipeDevices, kRoundPipeMicroBatches, false);
  EXPECT_LT(delayed, 0.95 * prompt);
  EXPECT_LE(prompt, alone.makespan + 1e-9);
  EXPECT_GE(delayed, alone.busy / kRoundPipeDevices);
}

}  // namespace
}  // namespace trainer
