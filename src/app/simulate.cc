#include "app/simulate.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "app/command.h"
#include "app/options.h"
#include "app/plan.h"
#include "app/plan_request.h"
#include "app/report_page.h"
#include "app/report_timeline.h"
#include "app/trace.h"
#include "base/file.h"
#include "base/units.h"

namespace trainer {
namespace {

constexpr const char* kSimulateUsage = R"(usage: trainer simulate CONFIG.json --platform NAME|FILE [options]

Runs the config's step on virtual time: how long it takes and what of it is exposed, memory, the timeline. The plan
is the config's; 'trainer plan' looks for a better one.

  --platform NAME|FILE      a name of configs/platforms, or a file (docs/platforms.md)
  --devices N               (default: the config's sizes multiplied)
  --html FILE               the timeline as a page that needs nothing else
  --trace FILE              the same for ui.perfetto.dev
  --json FILE               the figures
  --set SECTION.KEY=VALUE   replaces a value of the config
)";

// One step of it, called 1, from time 0 on.
Timeline only_step(const Timeline& all, int step) {
  Timeline one = step_of(all, step);
  double begin = INFINITY;
  for (const TimelineEvent& e : one.events) begin = std::min(begin, e.begin);
  for (TimelineEvent& e : one.events) {
    e.step = 1;
    e.begin -= begin;
    e.end -= begin;
  }
  for (MemorySample& sample : one.memory) sample.time -= begin;
  return one;
}

int64_t limit_of(const Config& config, const Platform& platform) {
  const int64_t budget = config.device.memory_budget.bytes;
  return budget > 0 ? std::min(budget, platform.memory_bytes) : platform.memory_bytes;
}

Json to_json(const SimulatedStep& s, const Platform& platform) {
  return {{"platform", platform.name},
          {"devices", s.devices},
          {"step_seconds", s.step.step_seconds},
          {"parts", parts_json(s.step)},
          {"tail_seconds", s.step.tail},
          {"bubble_ratio", s.step.bubble_ratio},
          {"tokens_per_second", s.tokens_per_second},
          {"memory_bytes", memory_json(s.memory)},
          {"memory_stage", s.memory.stage},
          {"memory_limit_bytes", s.memory_limit},
          {"fits", s.fits()}};
}

std::string text_of(const SimulatedStep& s) {
  std::string text = fmt::format("  {:<26}{}, {} tokens/s\n", "step", format_seconds(s.step.step_seconds),
                                 format_count(s.tokens_per_second));
  const auto line = [&](const char* name, double seconds) {
    text += fmt::format("  {:<26}{}\n", name, seconds == 0 ? "0" : format_seconds(seconds));
  };
  line("  main path (T_1F1B)", s.step.main_path);
  line("  communication (E_comm)", s.step.communication);
  line("  update (E_upd)", s.step.update);
  line("  prefetch (E_pref)", s.step.prefetch);
  line("  recovery (E_rec)", s.step.recovery);
  line("tail behind the backwards", s.step.tail);
  text += fmt::format("  {:<26}{:.1f} %\n", "compute lanes idle", 100 * s.step.bubble_ratio);
  text += fmt::format("  {:<26}{}: long {}, medium {}, short {}\n",
                      fmt::format("memory of stage {}", s.memory.stage),
                      format_bytes(static_cast<double>(s.memory.total())),
                      format_bytes(static_cast<double>(s.memory.tiers[0])),
                      format_bytes(static_cast<double>(s.memory.tiers[1])),
                      format_bytes(static_cast<double>(s.memory.tiers[2])));
  if (!s.fits())
    text += fmt::format("  it does not fit: a device may use {}\n",
                        format_bytes(static_cast<double>(s.memory_limit)));
  return text;
}

void run(std::span<const std::string> words) {
  const ConfigArguments arguments =
      read_config_arguments(words, {"--platform", "--devices", "--html", "--trace", "--json"}, {});
  const Options& options = arguments.options;
  const Config config = read_config(arguments.config, arguments.overrides);
  const Platform platform = read_platform(options.required("--platform"));
  const SimulatedStep s =
      simulate_step(config, platform, static_cast<int>(options.integer("--devices", 0, 1, 1 << 20)));
  const std::string subtitle = fmt::format("One step on {} device{} of {}, simulated", s.devices,
                                           s.devices > 1 ? "s" : "", platform.name);
  fmt::print("{}: {}\n\n{}", arguments.config, subtitle, text_of(s));
  if (const auto file = options.find("--json"))
    write_file_atomically(*file, to_json(s, platform).dump(1) + "\n");
  if (const auto file = options.find("--trace")) write_trace(*file, s.timeline);
  if (const auto file = options.find("--html"))
    write_file_atomically(
        *file, simulated_page(s, std::filesystem::path(arguments.config).filename().string(), subtitle));
}

}  // namespace

SimulatedStep simulate_step(const Config& config, const Platform& platform, int devices) {
  SimulatedStep s;
  s.devices = devices;
  if (devices == 0) {
    const auto& p = config.parallel;
    s.devices = static_cast<int>(p.pipeline_parallel_size * p.tensor_parallel_size *
                                 std::max<int64_t>(p.data_parallel_size, 1));
  }
  const Problem problem = planned_problem(config, make_planned_model(config), s.devices);
  const Prediction p = predict_step(problem, platform);
  s.step = p.step;
  s.tokens_per_second = static_cast<double>(config.training.global_batch_size * config.data.sequence_length) /
                        p.step.step_seconds;
  s.memory = fullest_stage(problem);
  s.memory_limit = limit_of(config, platform);
  s.ranks_shown = p.problem.ranks.empty() ? problem.world_size() : static_cast<int>(p.problem.ranks.size());
  s.timeline = only_step(to_timeline(p.graph, simulate(p.graph, p.costs, kStepsToSteadyState), 1),
                         kStepsToSteadyState - 1);
  return s;
}

std::string simulated_page(const SimulatedStep& s, const std::string& title, const std::string& subtitle) {
  using namespace report;
  std::string tiles = tile(format_seconds(s.step.step_seconds), "a step");
  tiles += tile(format_count(s.tokens_per_second), "tokens per second");
  tiles += tile(format_seconds(s.step.main_path), "main path (T_1F1B)");
  tiles += tile(format_seconds(s.step.step_seconds - s.step.main_path), "exposed besides");
  tiles += tile(fmt::format("{:.1f} %", 100 * s.step.bubble_ratio), "of the compute lanes is idle");
  tiles += tile(format_bytes(static_cast<double>(s.memory.total())),
                fmt::format("memory of stage {}{}", s.memory.stage, s.fits() ? "" : ": does not fit"));
  std::string body = fmt::format("<div class=\"tiles\">{}</div>\n", tiles);
  const std::string which =
      s.ranks_shown < s.devices
          ? fmt::format(
                "<p class=\"quiet\">{} ranks that stand for all {}: replicas do the same at the same "
                "time.</p>",
                s.ranks_shown, s.devices)
          : "";
  body += section("Timeline", which + timeline_section(s.timeline));
  body += section("Memory by lifetime", memory_section(s.timeline));
  return page(title, subtitle, body);
}

int simulate_command(std::span<const std::string> arguments) {
  return run_command({"simulate", kSimulateUsage}, arguments, [&] { run(arguments); });
}

}  // namespace trainer
