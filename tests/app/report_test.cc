#include "app/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "app/metrics.h"
#include "app/report_chart.h"
#include "app/run_files.h"
#include "app/trace.h"
#include "base/error.h"
#include "base/file.h"

namespace trainer {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::filesystem::path sample_run(const std::string& name) {
  const auto run = std::filesystem::path(::testing::TempDir()) / name;
  std::filesystem::remove_all(run);
  std::filesystem::create_directories(run);
  const RunFiles files(run);
  MetricsFile metrics(files.metrics, 0);
  for (int64_t i = 1; i <= 2000; ++i) {
    StepMetrics m;
    m.step = i;
    m.loss = i == 700 ? std::nan("") : 2 + 6 / std::sqrt(static_cast<double>(i));
    m.skipped = i == 700;
    m.grad_norm = i == 700 ? INFINITY : 1;
    m.learning_rate = 1e-3;
    m.tokens_per_second = 1000;
    m.step_seconds = 0.5;
    m.exposed.bubble = 0.1;
    m.memory = {100 << 20, 50 << 20, 1 << 20};
    if (i % 500 == 0) m.valid_loss = 2.25;
    metrics.write(m);
  }
  write_file_atomically(files.config,
                        R"({"run": {"directory": "<script>alert(1)</script>", "trace_steps": [7]}})");
  write_file_atomically(files.plan, R"({"front_end": "one_f_one_b", "memory": {"long": "100 MiB"}})");
  Timeline t;
  for (int rank = 0; rank < 2; ++rank)
    for (int m = 0; m < 4; ++m)
      t.events.push_back(
          {"Forward \"m\" & more", "Forward", "compute", rank, 7, 1, m, 3 + 0.1 * m, 3.09 + 0.1 * m});
  t.memory = {{3, 0, 100, 50, 1}, {3.2, 0, 100, 70, 1}};
  write_trace(trace_path(run, 7), t);
  return run;
}

// Every element that is opened is closed, in order. Returns what is wrong, or "".
std::string nesting_fault(const std::string& html) {
  const std::set<std::string> empty = {"meta", "input", "br", "!doctype"};
  std::vector<std::string> open;
  for (size_t at = html.find('<'); at != std::string::npos; at = html.find('<', at + 1)) {
    const size_t end = html.find('>', at);
    if (end == std::string::npos) return "unfinished tag";
    const std::string tag = html.substr(at + 1, end - at - 1);
    const std::string name = tag.substr(0, tag.find_first_of(" \n/", 1));
    if (tag[0] == '/') {
      if (open.empty() || open.back() != tag.substr(1))
        return "unexpected </" + tag.substr(1) + "> at " + std::to_string(at);
      open.pop_back();
    } else if (tag.back() != '/' && !empty.contains(name)) {
      open.push_back(name);
      if (name == "style" || name == "script") at = html.find("</" + name, at) - 1;
    }
  }
  return open.empty() ? "" : "<" + open.back() + "> is left open";
}

TEST(Report, HoldsEveryPartAndNeedsNothingElse) {
  const auto run = sample_run("report-run");
  const std::string run_name = run.string();
  EXPECT_EQ(report_command(std::span(&run_name, 1)), 0);
  const std::string html = read_file(RunFiles(run).report);
  EXPECT_EQ(nesting_fault(html), "");
  for (const char* part : {"Learning rate", "validation", "Where a step's time goes", "pipeline bubble",
                           "Timeline of traced steps", "Step 7", "rank 1", "Memory by lifetime", "Plan",
                           "one_f_one_b", "Configuration", "1 skipped"})
    EXPECT_THAT(html, HasSubstr(part));
  EXPECT_THAT(html, AllOf(Not(HasSubstr("http:")), Not(HasSubstr("https:")), Not(HasSubstr(" src=")),
                          Not(HasSubstr("@import")), Not(HasSubstr("<link"))));
  EXPECT_THAT(html, AllOf(HasSubstr("&lt;script&gt;alert(1)"), Not(HasSubstr("<script>alert"))));
  EXPECT_THAT(html, HasSubstr("Forward &quot;m&quot; &amp; more"));
  EXPECT_THAT(html, AllOf(Not(HasSubstr("nan")), Not(HasSubstr("inf\""))));
}

TEST(Report, MetricsAloneAreEnough) {
  const auto run = sample_run("report-metrics-only");
  std::filesystem::remove_all(run / "traces");
  std::filesystem::remove(RunFiles(run).config);
  std::filesystem::remove(RunFiles(run).plan);
  write_report(run);
  const std::string html = read_file(RunFiles(run).report);
  EXPECT_EQ(nesting_fault(html), "");
  EXPECT_THAT(html, AllOf(HasSubstr("Learning"), Not(HasSubstr("Timeline of traced steps"))));
}

TEST(Report, OneStepIsEnough) {
  const auto run = std::filesystem::path(::testing::TempDir()) / "report-one-step";
  std::filesystem::remove_all(run);
  std::filesystem::create_directories(run);
  StepMetrics m;
  m.step = 1;
  MetricsFile(RunFiles(run).metrics, 0).write(m);
  write_report(run);
  const std::string html = read_file(RunFiles(run).report);
  EXPECT_EQ(nesting_fault(html), "");
  EXPECT_THAT(html, Not(HasSubstr("nan")));
}

TEST(Report, WhatIsMissingIsNamed) {
  const auto run = std::filesystem::path(::testing::TempDir()) / "report-empty";
  std::filesystem::remove_all(run);
  std::filesystem::create_directories(run);
  EXPECT_THAT([&] { write_report(run); }, ::testing::ThrowsMessage<InputError>(HasSubstr("metrics.jsonl")));
  write_file_atomically(RunFiles(run).metrics, "");
  EXPECT_THAT([&] { write_report(run); },
              ::testing::ThrowsMessage<InputError>(HasSubstr("no finished step")));
  const std::string missing = "/no/such/run";
  EXPECT_EQ(report_command(std::span(&missing, 1)), 2);
}

TEST(ReportChart, TicksAreRoundAndInside) {
  EXPECT_THAT(report::ticks(0, 10, 5), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(report::ticks(0.3, 0.9, 3),
              ElementsAre(::testing::DoubleNear(0.4, 1e-12), ::testing::DoubleNear(0.6, 1e-12),
                          ::testing::DoubleNear(0.8, 1e-12)));
  EXPECT_THAT(report::ticks(-1, 1, 2), ElementsAre(-1, 0, 1));
  EXPECT_TRUE(report::ticks(1, 1, 5).empty());
}

TEST(ReportChart, SmoothingKeepsStraightLinesAndSkipsGaps) {
  std::vector<std::pair<double, double>> line;
  for (int i = 0; i < 600; ++i) line.emplace_back(i, 5 - 0.25 * i);
  const auto smooth = report::smooth(line);
  for (size_t i = 0; i < line.size(); ++i) EXPECT_NEAR(smooth[i].second, line[i].second, 1e-9);
  for (auto& point : line) point.second = 3;
  line[300].second = std::nan("");
  for (const auto& point : report::smooth(line)) EXPECT_NEAR(point.second, 3, 1e-12);
}

TEST(ReportChart, ASpikeAmongManyPointsIsDrawn) {
  report::Series series{"loss", "c-blue", {}};
  for (int i = 0; i < 100'000; ++i) series.points.emplace_back(i, i == 54'321 ? 100 : 1);
  const std::string svg =
      report::line_chart({.title = "t", .y_text = [](double v) { return std::to_string(v); }}, {series});
  const size_t begin = svg.find("class=\"line"), end = svg.find("/>", begin);
  const std::string path = svg.substr(begin, end - begin);
  EXPECT_LT(path.size(), 40'000);
  // 100 lies 1 / 1.1 of the way up the frame of 280 - 26 - 10 units.
  EXPECT_THAT(path, HasSubstr(fmt::format(" {:.1f}", 254 - (100 - 1 + 4.95) / (99 * 1.1) * 244)));
}

}  // namespace
}  // namespace trainer
