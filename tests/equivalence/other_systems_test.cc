// What the other scheduling systems need of programs, layers and the runtime, shown with programs written by
// hand: nothing in them is tied to weights that stay, to one device, to whole sequences, or to the end of a
// step.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>

#include "schedule/check.h"
#include "support/hand_written.h"
#include "support/model_runner.h"

namespace trainer {
namespace {

using testing::GridPlan;
using testing::HandBinder;
using testing::HandOptions;
using Weights = std::map<std::string, std::vector<float>>;

GridPlan plain_plan(Architecture architecture = Architecture::kLlama, int micro_batches = 4) {
  GridPlan plan;
  plan.model = testing::tiny_model(architecture, false);
  plan.micro_batches = micro_batches;
  plan.clip = 0;
  return plan;
}

Timeline run(HandBinder& binder, int steps) {
  for (const Diagnostic& d : check(binder.graph())) ADD_FAILURE() << d.message;
  const Clock clock;
  RuntimeOptions options;
  options.clock = &clock;
  for (int s = 1; s <= steps; ++s) options.traced_steps.insert(s);
  StageRuntime runtime(binder.graph(), binder, options);
  runtime.run(1, steps, nullptr);
  return runtime.take_timeline();
}

void expect_the_grids_bits(const HandBinder& binder, const GridPlan& plan) {
  const testing::GridResult expected = run_grid(plan);
  ASSERT_EQ(binder.losses().size(), expected.steps.size());
  for (size_t s = 0; s < expected.steps.size(); ++s) EXPECT_EQ(binder.losses()[s], expected.steps[s].loss);
  for (const auto& [name, values] : binder.weights_after(plan.steps))
    EXPECT_EQ(values, expected.weights.at(name)) << name;
  EXPECT_NE(expected.steps.front().loss, expected.steps.back().loss);
}

TEST(OtherSystems, AHandWrittenProgramEqualsTheFrontEnds) {
  const GridPlan plan = plain_plan();
  HandBinder binder(plan, {});
  run(binder, plan.steps);
  expect_the_grids_bits(binder, plan);
}

TEST(OtherSystems, WeightsInHostMemoryDispatchedToTwoDevices) {
  for (Architecture architecture : {Architecture::kLlama, Architecture::kQwen3, Architecture::kGpt2}) {
    const GridPlan plan = plain_plan(architecture);
    HandBinder binder(plan, {.streamed = true});
    const Timeline timeline = run(binder, plan.steps);
    expect_the_grids_bits(binder, plan);

    // Both devices worked, at the same time as copies, and one layer ran on either.
    std::map<std::string, int> tasks;
    std::map<int, std::set<std::string>> lanes_of_layer;
    bool overlapped = false;
    for (const TimelineEvent& e : timeline.events) {
      ++tasks[e.lane];
      if (e.kind == "Forward" || e.kind == "Backward") lanes_of_layer[e.layer].insert(e.lane);
      for (const TimelineEvent& other : timeline.events)
        overlapped |= e.kind == "Reload" && other.lane.starts_with("compute") && e.begin < other.end &&
                      other.begin < e.end;
    }
    for (const char* lane : {"compute", "compute 1", "host_to_device", "host_to_device 1", "host_compute"})
      EXPECT_GT(tasks[lane], 0) << lane;
    EXPECT_EQ(lanes_of_layer.at(1), (std::set<std::string>{"compute", "compute 1"}));
    EXPECT_TRUE(overlapped);

    // A device never holds more than two layers' weights, whatever the model.
    int64_t largest = 0;
    for (int l = 0; l < binder.model().layer_count(); ++l)
      largest = std::max(largest, binder.model().layer(l).block_size() * 4);
    for (const Buffer& b : binder.graph().buffers)
      if (b.space == Space::kDevice) {
        EXPECT_FALSE(b.name.starts_with("master"));
      }
    const auto slots = std::count_if(binder.graph().buffers.begin(), binder.graph().buffers.end(),
                                     [](const Buffer& b) { return b.name.starts_with("slot"); });
    EXPECT_EQ(slots, 4);
  }
}

class OtherSystemsByArchitecture : public ::testing::TestWithParam<Architecture> {};

TEST_P(OtherSystemsByArchitecture, ASequenceInSegmentsEqualsTheWhole) {
  const GridPlan plan = plain_plan(GetParam(), 2);
  HandBinder whole(plan, {.micro_batches = 2});
  run(whole, 1);
  for (const auto& segments : std::vector<std::vector<int64_t>>{{5, 7}, {1, 4, 7}, {6, 6}}) {
    HandBinder cut(plan, {.micro_batches = 2, .segments = segments});
    run(cut, 1);
    EXPECT_NEAR(cut.losses()[0], whole.losses()[0], 1e-6);
    for (size_t l = 0; l < whole.gradients().size(); ++l) {
      ASSERT_EQ(cut.gradients()[l].size(), whole.gradients()[l].size());
      double difference = 0, size = 0;
      for (size_t i = 0; i < whole.gradients()[l].size(); ++i) {
        difference = std::max<double>(difference, std::abs(cut.gradients()[l][i] - whole.gradients()[l][i]));
        size = std::max<double>(size, std::abs(whole.gradients()[l][i]));
      }
      EXPECT_GT(size, 1e-3);
      EXPECT_LT(difference, 2e-5 * size) << "layer " << l;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, OtherSystemsByArchitecture,
                         ::testing::Values(Architecture::kLlama, Architecture::kQwen2, Architecture::kQwen3,
                                           Architecture::kGpt2),
                         [](const auto& info) { return name_of(info.param); });

// The plain loop: step t computes with the weights that step t - 2 left, and updates those of step t - 1.
struct DelayedLoop {
  std::vector<double> losses;
  std::vector<Weights> weights;  // after step t; [0]: initial
};

DelayedLoop delayed_loop(const GridPlan& plan, const HandBinder& source) {
  ModelRunner runner(plan.model, make_host_kernels(1), DType::kF32);
  DelayedLoop loop;
  loop.weights.push_back(source.weights_after(0));
  Weights moments1, moments2;
  for (int64_t step = 1; step <= plan.steps; ++step) {
    const Weights& old = loop.weights[static_cast<size_t>(std::max<int64_t>(step - 2, 0))];
    runner.set_weights([&](const ParameterSpec& p, std::span<float> values) {
      std::copy(old.at(p.name).begin(), old.at(p.name).end(), values.begin());
    });
    const auto rows = source.rows(step, 0, 0, testing::kHandSequence);
    TestBatch batch = make_batch(testing::kHandMicroBatch, testing::kHandSequence, rows.tokens, rows.labels);
    batch.document_starts = {0, static_cast<int32_t>(testing::kHandSequence)};
    const RunResult result = runner.run(batch);
    loop.losses.push_back(result.loss_sum / static_cast<double>(result.valid_tokens));
    Weights next = loop.weights.back();
    for (int l = 0; l < runner.model().layer_count(); ++l)
      for (const ParameterSpec& p : runner.model().layer(l).parameters()) {
        const auto count = static_cast<size_t>(p.count());
        moments1[p.name].resize(count);
        moments2[p.name].resize(count);
        AdamW a = HandBinder::adamw_of(source.optimizer(), p, step, result.valid_tokens);
        a.master = next.at(p.name).data();
        a.moment1 = moments1[p.name].data();
        a.moment2 = moments2[p.name].data();
        a.gradient = result.gradients.at(p.name).data();
        runner.kernels().adamw(a);
      }
    loop.weights.push_back(std::move(next));
  }
  return loop;
}

TEST(OtherSystems, AnUpdateOneStepLateEqualsTheDelayedLoop) {
  GridPlan plan = plain_plan(Architecture::kLlama, 1);
  plan.steps = 6;
  DelayedLoop expected;
  {
    const HandBinder initial(plan, {.micro_batches = 1, .delayed = true});
    expected = delayed_loop(plan, initial);
  }
  for (bool streamed : {false, true}) {
    HandBinder binder(plan, {.micro_batches = 1, .streamed = streamed, .delayed = true});
    // The update of step 2 waits in its first task until the forward pass of step 3 has begun: with a barrier
    // between steps that would never come.
    std::atomic<bool> forward_began{false}, came{true};
    binder.on_start = [&](const Task& task, int64_t step) {
      if (task.kind == TaskKind::kForward && step == 3) forward_began = true;
      if (task.kind != TaskKind::kUpdateShard || step != 2) return;
      for (int i = 0; came && i < 30000 && !forward_began; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (!forward_began) came = false;
    };
    const Timeline timeline = run(binder, plan.steps);
    EXPECT_TRUE(came);
    EXPECT_EQ(binder.losses(), expected.losses);
    EXPECT_EQ(binder.weights_after(plan.steps), expected.weights.back());
    EXPECT_EQ(binder.weights_after(plan.steps - 1), expected.weights[static_cast<size_t>(plan.steps) - 1]);
    double update_ends = 0, forward_begins = 1e30;
    for (const TimelineEvent& e : timeline.events) {
      if (e.kind == "UpdateShard" && e.step == 2) update_ends = std::max(update_ends, e.end);
      if (e.kind == "Forward" && e.step == 3) forward_begins = std::min(forward_begins, e.begin);
    }
    EXPECT_LT(forward_begins, update_ends);
  }
  // The delay shows; else this would show nothing.
  HandBinder prompt(plan, {.micro_batches = 1});
  run(prompt, plan.steps);
  EXPECT_NE(prompt.weights_after(plan.steps), expected.weights.back());
}

}  // namespace
}  // namespace trainer
