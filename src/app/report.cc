#include "app/report.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "app/command.h"
#include "app/metrics.h"
#include "app/report_chart.h"
#include "app/report_page.h"
#include "app/report_timeline.h"
#include "app/run_files.h"
#include "app/trace.h"
#include "base/file.h"
#include "base/units.h"

namespace trainer {
namespace {

using namespace report;

template <class Value>
std::vector<std::pair<double, double>> by_step(const std::vector<StepMetrics>& metrics, Value value) {
  std::vector<std::pair<double, double>> points;
  for (const auto& m : metrics) points.emplace_back(static_cast<double>(m.step), value(m));
  return points;
}

std::vector<std::pair<double, double>> valid_points(const std::vector<StepMetrics>& metrics) {
  std::vector<std::pair<double, double>> points;
  for (const auto& m : metrics)
    if (m.valid_loss) points.emplace_back(static_cast<double>(m.step), *m.valid_loss);
  return points;
}

// Means over the steps after the first, which warms up memory.
struct Typical {
  double seconds = 0, tokens_per_second = 0;
  std::array<double, 6> waiting{};  // in the order of kCauses
  double waited() const {
    double sum = 0;
    for (const double seconds_of_cause : waiting) sum += seconds_of_cause;
    return sum;
  }
};

struct WaitingCause {
  const char* name;
  const char* color;
  double ExposedTime::*seconds;
};
constexpr std::array<WaitingCause, 6> kCauses = {
    {{"pipeline bubble", "c-grey", &ExposedTime::bubble},
     {"stage boundary", "c-teal", &ExposedTime::boundary},
     {"gradient synchronisation", "c-red", &ExposedTime::grad_sync},
     {"optimizer update", "c-green", &ExposedTime::update},
     {"weight refresh", "c-yellow", &ExposedTime::prefetch},
     {"recovery", "c-purple", &ExposedTime::recovery}}};

Typical typical(const std::vector<StepMetrics>& metrics) {
  Typical t;
  const size_t first = metrics.size() > 1 ? 1 : 0;
  double tokens = 0;
  for (size_t i = first; i < metrics.size(); ++i) {
    t.seconds += metrics[i].step_seconds;
    tokens += metrics[i].tokens_per_second * metrics[i].step_seconds;
    for (size_t c = 0; c < kCauses.size(); ++c) t.waiting[c] += metrics[i].exposed.*kCauses[c].seconds;
  }
  t.tokens_per_second = t.seconds > 0 ? tokens / t.seconds : 0;
  const auto count = static_cast<double>(metrics.size() - first);
  t.seconds /= count;
  for (double& seconds : t.waiting) seconds /= count;
  return t;
}

TierBytes peak_memory(const std::vector<StepMetrics>& metrics) {
  TierBytes peak{};
  for (const auto& m : metrics)
    for (size_t tier = 0; tier < peak.size(); ++tier) peak[tier] = std::max(peak[tier], m.memory[tier]);
  return peak;
}

std::string four_digits(double value) { return fmt::format("{:.4g}", value); }

std::string tiles(const std::vector<StepMetrics>& metrics, const Typical& mean) {
  const auto losses = smooth(by_step(metrics, [](const auto& m) { return m.loss; }));
  const auto valid = valid_points(metrics);
  double seconds = 0;
  int64_t skipped = 0;
  for (const auto& m : metrics) {
    seconds += m.step_seconds;
    skipped += m.skipped ? 1 : 0;
  }
  const TierBytes peak = peak_memory(metrics);
  std::string html = tile(fmt::format("{:.4f}", losses.back().second), "final training loss");
  if (!valid.empty()) html += tile(fmt::format("{:.4f}", valid.back().second), "final validation loss");
  html += tile(fmt::format("{}", metrics.back().step),
               skipped ? fmt::format("steps, {} skipped", skipped) : "steps");
  html += tile(format_seconds(seconds), "training time");
  html += tile(format_count(mean.tokens_per_second), "tokens per second");
  html += tile(fmt::format("{:.1f} %", mean.seconds > 0 ? 100 * mean.waited() / mean.seconds : 0),
               "of a step is waiting");
  html += tile(format_bytes(static_cast<double>(peak[0] + peak[1] + peak[2])), "peak memory, one rank");
  return fmt::format("<div class=\"tiles\">{}</div>\n", html);
}

std::string curves(const std::vector<StepMetrics>& metrics) {
  const auto loss = by_step(metrics, [](const auto& m) { return m.loss; });
  std::vector<Series> lines = {{"training", "c-blue", loss, true},
                               {"training, smoothed", "c-blue", smooth(loss)}};
  if (auto valid = valid_points(metrics); !valid.empty())
    lines.push_back({"validation", "c-orange", std::move(valid), false, true});
  const std::string main_chart = line_chart({.title = "Loss, nats per token", .y_text = four_digits}, lines);

  const auto small = [&](const char* title, const char* color, auto value, std::string (*text)(double)) {
    const auto points = by_step(metrics, value);
    return line_chart({.title = title, .width = 520, .height = 190, .from_zero = true, .y_text = text},
                      {{"value", color, points}});
  };
  return section("Learning", fmt::format("{}<div class=\"pair\">{}{}</div>", main_chart,
                                         small(
                                             "Learning rate", "c-green",
                                             [](const auto& m) { return m.learning_rate; }, four_digits),
                                         small(
                                             "Gradient norm before clipping", "c-purple",
                                             [](const auto& m) { return m.grad_norm; }, four_digits))) +
         section("Speed", fmt::format("<div class=\"pair\">{}{}</div>",
                                      small(
                                          "Tokens per second", "c-blue",
                                          [](const auto& m) { return m.tokens_per_second; }, format_count),
                                      small(
                                          "Seconds per step", "c-teal",
                                          [](const auto& m) { return m.step_seconds; }, four_digits)));
}

std::string waiting(const Typical& mean) {
  const auto text = [&](double seconds) {
    return fmt::format("{} ({:.1f} %)", format_seconds(seconds),
                       mean.seconds > 0 ? 100 * seconds / mean.seconds : 0);
  };
  std::vector<Bar> bars = {{"working", "c-blue", std::max(0.0, mean.seconds - mean.waited()), ""}};
  for (size_t c = 0; c < kCauses.size(); ++c)
    bars.push_back({kCauses[c].name, kCauses[c].color, mean.waiting[c], ""});
  for (auto& bar : bars) bar.text = text(bar.value);
  std::vector<Bar> causes(bars.begin() + 1, bars.end());
  return section("Where a step's time goes",
                 fmt::format("{}<h3>Waiting of the main path by cause <span class=\"quiet\">mean of a step "
                             "and of the ranks</span></h3>{}",
                             share_bar(bars), bar_rows(causes)));
}

std::string memory(const std::vector<StepMetrics>& metrics, const Timeline& timeline) {
  const TierBytes peak = peak_memory(metrics);
  std::vector<Bar> bars = {{"long", "c-blue", static_cast<double>(peak[0]), ""},
                           {"medium", "c-orange", static_cast<double>(peak[1]), ""},
                           {"short", "c-green", static_cast<double>(peak[2]), ""}};
  for (auto& bar : bars) bar.text = format_bytes(bar.value);
  return section("Memory by lifetime", fmt::format("<p class=\"quiet\">Largest use of a step, of the rank "
                                                   "that used most. Long: kept for the whole run. "
                                                   "Medium: about a step. Short: a slice of a step.</p>{}{}",
                                                   share_bar(bars), memory_section(timeline)));
}

std::string table_rows(const Json& object, const std::string& prefix) {
  std::string rows;
  for (const auto& [key, value] : object.items()) {
    const std::string name = prefix.empty() ? key : fmt::format("{}.{}", prefix, key);
    if (value.is_object())
      rows += table_rows(value, name);
    else
      rows += fmt::format("<tr><td>{}</td><td>{}</td></tr>", escape(name),
                          escape(value.is_string() ? value.get<std::string>() : value.dump()));
  }
  return rows;
}

// Every section of a JSON file as a table; "" when there is no such file.
std::string tables(const std::string& title, const std::filesystem::path& file) {
  if (!std::filesystem::exists(file)) return "";
  const Json json = parse_json_file(file.string());
  if (!json.is_object()) input_error("{}: expected an object", file.string());
  Json plain = Json::object();
  std::string html;
  for (const auto& [key, value] : json.items()) {
    if (value.is_object())
      html += fmt::format("<div><h3>{}</h3><table>{}</table></div>", escape(key), table_rows(value, ""));
    else
      plain[key] = value;
  }
  if (!plain.empty()) html = fmt::format("<div><table>{}</table></div>{}", table_rows(plain, ""), html);
  return section(title, fmt::format("<div class=\"tables\">{}</div>", html));
}

Timeline traced(const std::filesystem::path& run_directory) {
  Timeline all;
  for (const auto& file : list_traces(run_directory)) {
    Timeline one = read_trace(file);
    all.events.insert(all.events.end(), one.events.begin(), one.events.end());
    all.memory.insert(all.memory.end(), one.memory.begin(), one.memory.end());
  }
  return all;
}

}  // namespace

void write_report(const std::filesystem::path& run_directory) {
  const RunFiles files(run_directory);
  const auto metrics = read_metrics(files.metrics);
  if (metrics.empty())
    input_error("{}: holds no finished step yet, so there is nothing to report", files.metrics.string());
  const Timeline timeline = traced(run_directory);
  const Typical mean = typical(metrics);
  std::string html;
  html += tiles(metrics, mean);
  html += curves(metrics);
  html += waiting(mean);
  if (!timeline.events.empty()) html += section("Timeline of traced steps", timeline_section(timeline));
  if (const auto file = simulated_trace_path(run_directory); std::filesystem::exists(file))
    html += section("The first of them as simulated, with the median lengths of its tasks",
                    timeline_section(read_trace(file)));
  html += memory(metrics, timeline);
  html += tables("Results", files.summary);
  html += tables("Plan", files.plan);
  html += tables("Configuration", files.config);
  const std::string name = std::filesystem::absolute(run_directory).lexically_normal().filename().string();
  write_file_atomically(
      files.report,
      page(name, fmt::format("Training report, steps {} to {}", metrics.front().step, metrics.back().step),
           html));
}

int report_command(std::span<const std::string> arguments) {
  constexpr const char* kUsage =
      "usage: trainer report RUN_DIRECTORY\n\n"
      "Writes RUN_DIRECTORY/report.html from the metrics and traces there.\n";
  return run_command({"report", kUsage}, arguments, [&] {
    if (arguments[0].starts_with("-"))
      input_error("unknown argument '{}'; --help lists the arguments", arguments[0]);
    if (arguments.size() > 1) input_error("'{}' is one argument too many: one run at a time", arguments[1]);
    if (!std::filesystem::is_directory(arguments[0])) input_error("'{}' is not a folder", arguments[0]);
    write_report(arguments[0]);
    fmt::print("{}\n", RunFiles(arguments[0]).report.string());
  });
}

}  // namespace trainer
