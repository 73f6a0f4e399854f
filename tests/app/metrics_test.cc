#include "app/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "base/error.h"
#include "base/file.h"

namespace trainer {
namespace {

std::filesystem::path fresh(const std::string& name) {
  const auto path = std::filesystem::path(::testing::TempDir()) / name;
  std::filesystem::remove(path);
  return path;
}

StepMetrics step(int64_t number) {
  StepMetrics m;
  m.step = number;
  m.loss = 3.0 / static_cast<double>(number);
  m.grad_norm = 0.1;
  m.learning_rate = 1e-4;
  m.tokens_per_second = 12345.678;
  m.step_seconds = 0.25;
  m.exposed = {0.01, 0.02, 0.03, 0.04, 0.05, 0.06};
  m.memory = {int64_t{1} << 40, 2, 3};
  m.consumed_samples = 32 * number;
  return m;
}

std::vector<int64_t> steps_in(const std::filesystem::path& path) {
  std::vector<int64_t> steps;
  for (const auto& m : read_metrics(path)) steps.push_back(m.step);
  return steps;
}

TEST(Metrics, FloatsReadBackToTheSameBits) {
  const auto path = fresh("bits.jsonl");
  std::mt19937_64 random(1);
  std::vector<double> values = {0.1,  1e-308, 5e-324, -0.0, 1.0, std::numeric_limits<double>::max(),
                                2.1f, 1.0 / 3};
  while (values.size() < 400)
    if (const double v = std::bit_cast<double>(random()); std::isfinite(v)) values.push_back(v);
  {
    MetricsFile file(path, 0);
    for (size_t i = 0; i < values.size(); ++i) {
      StepMetrics m = step(static_cast<int64_t>(i) + 1);
      m.loss = values[i];
      m.exposed.update = values[i];
      file.write(m);
    }
  }
  const auto lines = read_metrics(path);
  ASSERT_EQ(lines.size(), values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint64_t>(lines[i].loss), std::bit_cast<uint64_t>(values[i])) << values[i];
    EXPECT_EQ(std::bit_cast<uint64_t>(lines[i].exposed.update), std::bit_cast<uint64_t>(values[i]));
  }
}

TEST(Metrics, KeysThatScriptsRelyOn) {
  StepMetrics m = step(7);
  m.loss = 2.5;
  EXPECT_EQ(
      to_json(m).dump(),
      R"({"step":7,"loss":2.5,"grad_norm":0.1,"learning_rate":0.0001,"tokens_per_second":12345.678,"step_seconds":0.25,"t_1f1b_seconds":0.0,)"
      R"("exposed":{"bubble":0.01,"boundary":0.02,"grad_sync":0.03,"update":0.04,"prefetch":0.05,"recovery":0.06},)"
      R"("memory":{"long":1099511627776,"medium":2,"short":3},"consumed_samples":224,"skipped":false})");
  m.valid_loss = 2;
  EXPECT_EQ(to_json(m)["valid_loss"], 2);
}

TEST(Metrics, NonFiniteValuesAreNull) {
  const auto path = fresh("null.jsonl");
  StepMetrics m = step(1);
  m.loss = std::nan("");
  m.grad_norm = std::numeric_limits<double>::infinity();
  m.skipped = true;
  MetricsFile(path, 0).write(m);
  EXPECT_THAT(read_file(path), ::testing::HasSubstr("\"loss\":null,\"grad_norm\":null"));
  const auto back = read_metrics(path).at(0);
  EXPECT_TRUE(std::isnan(back.loss) && std::isnan(back.grad_norm) && back.skipped);
}

TEST(Metrics, ResumeCutsWhatLiesBeyondTheCheckpoint) {
  const auto path = fresh("resume.jsonl");
  {
    MetricsFile file(path, 0);
    for (int64_t i = 1; i <= 6; ++i) file.write(step(i));
  }
  const std::string six = read_file(path);
  {
    MetricsFile file(path, 4);
    EXPECT_EQ(steps_in(path), (std::vector<int64_t>{1, 2, 3, 4}));
    file.write(step(5));
  }
  EXPECT_EQ(six.substr(0, read_file(path).size()),
            read_file(path));  // what is kept is not rewritten in another form
  MetricsFile(path, 0);
  EXPECT_EQ(read_file(path), "");
}

TEST(Metrics, LineCutShortByACrashIsDropped) {
  const auto path = fresh("crash.jsonl");
  MetricsFile(path, 0).write(step(1));
  { std::ofstream(path, std::ios::app) << R"({"step":2,"loss":1.)"; }
  EXPECT_EQ(steps_in(path), (std::vector<int64_t>{1}));
  MetricsFile(path, 2).write(step(2));
  EXPECT_EQ(steps_in(path), (std::vector<int64_t>{1, 2}));
}

TEST(Metrics, DamagedLinesAreNamed) {
  const auto path = fresh("damaged.jsonl");
  write_file_atomically(path, to_json(step(1)).dump() + "\n{\"step\":\"two\"}\n");
  EXPECT_THAT([&] { read_metrics(path); },
              ::testing::ThrowsMessage<InputError>(
                  ::testing::AllOf(::testing::HasSubstr("line 2"), ::testing::HasSubstr("step"))));
  EXPECT_THROW(MetricsFile("/no/such/folder/metrics.jsonl", 0), RunError);
}

}  // namespace
}  // namespace trainer
