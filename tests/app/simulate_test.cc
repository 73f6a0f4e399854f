#include "app/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "app/plan_request.h"
#include "app/trace.h"
#include "base/file.h"
#include "checkpoint/test_folder.h"
#include "schedule/passes.h"

namespace trainer {
namespace {

using ::testing::HasSubstr;

const std::string kSource = std::string(TEST_DATA) + "/../../";

Json config_json(int stages, int replicas) {
  return {
      {"model", {{"hugging_face", kSource + "configs/models/qwen2.5-0.5b.json"}}},
      {"data", {{"data_path", "none"}, {"sequence_length", 256}}},
      {"parallel", {{"pipeline_parallel_size", stages}, {"data_parallel_size", replicas}, {"zero_stage", 2}}},
      {"schedule", {{"activation", "checkpoint"}, {"recovery_buffers", 2}}},
      {"training", {{"steps", 1}, {"micro_batch_size", 1}, {"global_batch_size", 16}}},
      {"optimizer", {{"lr", 1e-4}}},
      {"run", {{"directory", "none"}}}};
}

Platform mt3000() { return read_platform("mt3000", kSource + "configs/platforms"); }

// The figures are those of the program that training runs, of all ranks.
TEST(Simulate, IsTheProgramThatTrains) {
  const Platform platform = mt3000();
  const Config config = parse_config(config_json(4, 2).dump(), "config");
  const SimulatedStep s = simulate_step(config, platform, 0);
  EXPECT_EQ(s.devices, 8);
  EXPECT_EQ(s.ranks_shown, 4);
  const Problem problem = planned_problem(config, make_planned_model(config), 8);
  const StepGraph graph = build_step_graph(problem);
  const StepAnalysis whole = analyse_step(graph, cost_model(graph, problem, platform));
  Platform one_lane = platform;
  one_lane.recovery_has_its_own_lane = false;
  const SimulatedStep as_here = simulate_step(config, one_lane, 8);
  EXPECT_NEAR(as_here.step.step_seconds, whole.step_seconds, 0.01 * whole.step_seconds);
  EXPECT_LT(s.step.step_seconds, as_here.step.step_seconds);
  EXPECT_DOUBLE_EQ(s.tokens_per_second, 16 * 256 / s.step.step_seconds);
  EXPECT_EQ(s.memory.total(), stage_memory(problem, s.memory.stage).total());

  double first = 1, last = 0;
  for (const TimelineEvent& e : s.timeline.events) {
    EXPECT_EQ(e.step, 1);
    first = std::min(first, e.begin);
    last = std::max(last, e.end);
  }
  EXPECT_EQ(first, 0);
  EXPECT_GE(last, 0.9 * s.step.step_seconds);
  EXPECT_FALSE(s.timeline.memory.empty());
}

TEST(Simulate, WritesWhatItIsAskedFor) {
  const TestFolder folder;
  const std::string config = (folder.path() / "config.json").string();
  write_file_atomically(config, config_json(2, 1).dump());
  const auto file = [&](const char* name) { return (folder.path() / name).string(); };
  const std::vector<std::string> words = {config,
                                          "--platform",
                                          kSource + "configs/platforms/h200.json",
                                          "--json",
                                          file("figures.json"),
                                          "--html",
                                          file("step.html"),
                                          "--trace",
                                          file("step.json")};
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(simulate_command(words), 0);
  const std::string text = ::testing::internal::GetCapturedStdout();
  EXPECT_THAT(text, HasSubstr("One step on 2 devices of h200, simulated"));
  EXPECT_THAT(text, HasSubstr("main path (T_1F1B)"));
  const Json figures = parse_json_file(file("figures.json"));
  double parts = 0;
  for (const auto& [name, seconds] : figures["parts"].items()) parts += seconds.get<double>();
  EXPECT_NEAR(parts, figures["step_seconds"].get<double>(), 1e-9);
  EXPECT_FALSE(read_trace(file("step.json")).events.empty());
  const std::string page = read_file(file("step.html"));
  EXPECT_THAT(page, HasSubstr("<h2>Timeline</h2>"));
  EXPECT_THAT(page, HasSubstr("Backward"));
  EXPECT_EQ(page.find("<script src"), std::string::npos);
}

TEST(Simulate, SaysWhatDoesNotFit) {
  const TestFolder folder;
  Platform small = mt3000();
  small.memory_bytes = int64_t{1} << 20;
  const std::string config = (folder.path() / "config.json").string(),
                    platform = (folder.path() / "small.json").string(),
                    figures = (folder.path() / "figures.json").string();
  write_file_atomically(config, config_json(1, 1).dump());
  write_file_atomically(platform, platform_to_json(small).dump());
  const auto run = [&](const std::vector<std::string>& words) {
    ::testing::internal::CaptureStdout();
    EXPECT_EQ(simulate_command(words), 0);
    return ::testing::internal::GetCapturedStdout();
  };
  EXPECT_THAT(run({config, "--platform", platform, "--json", figures}),
              HasSubstr("it does not fit: a device may use"));
  EXPECT_FALSE(parse_json_file(figures)["fits"].get<bool>());
  // The config's own limit counts as well.
  const std::string large = kSource + "configs/platforms/h200.json";
  EXPECT_EQ(run({config, "--platform", large}).find("does not fit"), std::string::npos);
  EXPECT_THAT(run({config, "--platform", large, "--set", "device.memory_budget=1MiB"}),
              HasSubstr("does not fit"));
  EXPECT_THROW(simulate_step(parse_config(config_json(5, 1).dump(), "config"), mt3000(), 7), InputError);
}

}  // namespace
}  // namespace trainer
