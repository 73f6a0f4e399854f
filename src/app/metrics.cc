#include "app/metrics.h"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>

#include "base/error.h"
#include "base/file.h"

namespace trainer {
namespace {

// Calls `use(line, number)` for every line that ends in a line feed.
template <class Use>
void for_each_line(std::string_view text, Use use) {
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return;
    use(text.substr(0, end), number);
    text.remove_prefix(end + 1);
  }
}

Json finite(double value) { return std::isfinite(value) ? Json(value) : Json(); }

double number(const Json& object, const char* key, const std::string& where) {
  return json_number(object, key, where, std::numeric_limits<double>::quiet_NaN());
}

Json object_at(const Json& object, const char* key, const std::string& where) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_object()) input_error("{}: key '{}': expected an object", where, key);
  return *it;
}

ExposedTime parse_exposed(const Json& json, const std::string& where) {
  return {.bubble = number(json, "bubble", where),
          .boundary = number(json, "boundary", where),
          .grad_sync = number(json, "grad_sync", where),
          .update = number(json, "update", where),
          .prefetch = number(json, "prefetch", where),
          .recovery = number(json, "recovery", where)};
}

Json tier_json(const TierBytes& bytes) {
  Json json;
  for (int tier = 0; tier < kTierCount; ++tier)
    json[name_of(static_cast<Tier>(tier))] = bytes[static_cast<size_t>(tier)];
  return json;
}

Json exposed_json(const ExposedTime& e) {
  return {{"bubble", finite(e.bubble)}, {"boundary", finite(e.boundary)}, {"grad_sync", finite(e.grad_sync)},
          {"update", finite(e.update)}, {"prefetch", finite(e.prefetch)}, {"recovery", finite(e.recovery)}};
}

StepMetrics parse_line(std::string_view line, const std::string& where) {
  const Json json = parse_json(line, where);
  StepMetrics m;
  m.step = json_integer(json, "step", where);
  m.loss = number(json, "loss", where);
  m.grad_norm = number(json, "grad_norm", where);
  m.learning_rate = number(json, "learning_rate", where);
  m.tokens_per_second = number(json, "tokens_per_second", where);
  m.step_seconds = number(json, "step_seconds", where);
  m.exposed = parse_exposed(object_at(json, "exposed", where), where);
  m.main_path_seconds = number(json, "t_1f1b_seconds", where);
  if (json.contains("ranks"))
    for (const Json& rank : json["ranks"])
      m.ranks.push_back({number(rank, "compute", where), parse_exposed(rank, where)});
  const Json memory = object_at(json, "memory", where);
  for (int tier = 0; tier < kTierCount; ++tier)
    m.memory[static_cast<size_t>(tier)] = json_integer(memory, name_of(static_cast<Tier>(tier)), where);
  m.consumed_samples = json_integer(json, "consumed_samples", where);
  m.skipped = json_bool(json, "skipped", where, false);
  if (json.contains("valid_loss")) m.valid_loss = number(json, "valid_loss", where);
  return m;
}

}  // namespace

Json to_json(const StepMetrics& m) {
  Json json = {{"step", m.step},
               {"loss", finite(m.loss)},
               {"grad_norm", finite(m.grad_norm)},
               {"learning_rate", finite(m.learning_rate)},
               {"tokens_per_second", finite(m.tokens_per_second)},
               {"step_seconds", finite(m.step_seconds)},
               {"t_1f1b_seconds", finite(m.main_path_seconds)},
               {"exposed", exposed_json(m.exposed)},
               {"memory", tier_json(m.memory)},
               {"consumed_samples", m.consumed_samples},
               {"skipped", m.skipped}};
  for (const RankTime& rank : m.ranks) {
    Json time = exposed_json(rank.exposed);
    time["compute"] = finite(rank.compute);
    json["ranks"].push_back(std::move(time));
  }
  if (m.valid_loss) json["valid_loss"] = finite(*m.valid_loss);
  return json;
}

MetricsFile::MetricsFile(std::filesystem::path path, int64_t resumed_step) : path_(std::move(path)) {
  if (std::filesystem::exists(path_)) {
    const std::string text = read_file(path_);
    std::string kept;
    for_each_line(text, [&](std::string_view line, int row) {
      if (parse_line(line, fmt::format("{} line {}", path_.string(), row)).step <= resumed_step)
        kept.append(line).push_back('\n');
    });
    if (kept != text) write_file_atomically(path_, kept);
  }
  file_.open(path_, std::ios::app | std::ios::binary);
  if (!file_) run_error("cannot open {} for appending: {}", path_.string(), std::strerror(errno));
}

void MetricsFile::write(const StepMetrics& metrics) {
  file_ << to_json(metrics).dump() + "\n" << std::flush;
  if (!file_) run_error("cannot write {}: {}", path_.string(), std::strerror(errno));
}

std::vector<StepMetrics> read_metrics(const std::filesystem::path& path) {
  std::vector<StepMetrics> lines;
  const std::string text = read_file(path);
  for_each_line(text, [&](std::string_view line, int row) {
    lines.push_back(parse_line(line, fmt::format("{} line {}", path.string(), row)));
  });
  return lines;
}

}  // namespace trainer
