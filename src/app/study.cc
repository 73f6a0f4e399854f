#include "app/study.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "app/command.h"
#include "app/options.h"
#include "base/file.h"
#include "base/json.h"

namespace trainer {
namespace {

constexpr StudyEntry kStudies[] = {
    {"lazytrain", "LazyTrain's capacities, published schedule and throughput", lazytrain_study, nullptr},
    {"ratrain", "RATrain's memory, step times, ablation and scaling", ratrain_study, nullptr},
    {"roundpipe", "bubbles, makespans and partitions of RoundPipe's schedules", roundpipe_study, nullptr},
    {"sppo", "SPPO's boundary sets, limits and examples", sppo_study, nullptr},
    {"this-machine", "measured steps of runs on this machine and their predictions", nullptr,
     this_machine_study},
};

std::string usage() {
  std::string text = R"(usage: trainer study NAME [options]

Makes the figures of a published system again and prints them beside the published ones.

  --json FILE              one array of {table, row, published, ours, error}
  --markdown FILE          the tables as a document, deviations listed
  --rounds N               of measurements, of which medians are taken (this-machine; default 5)

Studies:

)";
  for (const StudyEntry& entry : studies()) text += fmt::format("  {:<24} {}\n", entry.name, entry.summary);
  return text;
}

std::string text_of(const StudyValue& value) {
  if (const auto* number = std::get_if<double>(&value)) return fmt::format("{:.6g}", *number);
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  return "-";
}

std::string text_of_error(const StudyRow& row) {
  const auto error = row.error();
  if (!error) return "-";
  switch (row.measure) {
    case StudyError::kDifference:
      return fmt::format("{:+.3g}", *error);
    case StudyError::kRelative:
      return fmt::format("{:+.2f} %", 100 * *error);
    case StudyError::kEqual:
      return *error == 0 ? "equal" : "differs";
  }
  return "-";
}

Json json_of(const StudyValue& value) {
  if (const auto* number = std::get_if<double>(&value)) return *number;
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  return nullptr;
}

std::string title_of(const StudyRow& row) { return row.unit.empty() ? row.row : row.row + ", " + row.unit; }

void print(const Study& study) {
  size_t width = 3, value = 9;
  for (const StudyRow& row : study.rows) {
    width = std::max(width, title_of(row).size());
    value = std::max({value, text_of(row.published).size(), text_of(row.ours).size()});
  }
  std::string table;
  for (const StudyRow& row : study.rows) {
    if (row.table != table) {
      table = row.table;
      fmt::print("\n{}\n", table);
      fmt::print("  {:<{}} {:>{}} {:>{}} {:>10}\n", "", width, "published", value, "ours", value, "error");
    }
    fmt::print("  {:<{}} {:>{}} {:>{}} {:>10}\n", title_of(row), width, text_of(row.published), value,
               text_of(row.ours), value, text_of_error(row));
    if (!row.note.empty()) fmt::print("    {}\n", row.note);
  }
  for (const std::string& sentence : study.assumptions) fmt::print("\n{}\n", sentence);
}

const StudyEntry& find_study(const std::string& name) {
  std::vector<std::string> names;
  for (const StudyEntry& entry : studies()) {
    if (name == entry.name) return entry;
    names.emplace_back(entry.name);
  }
  const std::string near = nearest_name(name, names);
  input_error("there is no study '{}'{}", name,
              near.empty() ? "; 'trainer study --help' lists them" : "; did you mean '" + near + "'?");
}

}  // namespace

std::optional<double> StudyRow::error() const {
  if (measure == StudyError::kEqual) {
    if (published.index() == 0 || ours.index() == 0) return std::nullopt;
    return published == ours ? 0 : 1;
  }
  const auto *theirs = std::get_if<double>(&published), *mine = std::get_if<double>(&ours);
  if (!theirs || !mine) return std::nullopt;
  return measure == StudyError::kDifference ? *mine - *theirs : *mine / *theirs - 1;
}

bool StudyRow::deviates() const {
  const auto distance = error();
  if (!distance) return false;
  constexpr double kShare = 0.01;
  const double allowed = measure == StudyError::kEqual      ? 0
                         : measure == StudyError::kRelative ? kShare
                                                            : kShare * std::abs(std::get<double>(published));
  return std::abs(*distance) > allowed;
}

StudyRow& add_row(Study& study, std::string table, std::string row, StudyValue published, StudyValue ours,
                  StudyError measure, std::string unit, std::string why) {
  StudyRow& added = study.rows.emplace_back(StudyRow{
      std::move(table), std::move(row), std::move(published), std::move(ours), measure, std::move(unit), {}});
  if (added.deviates()) added.note = std::move(why);
  return added;
}

std::span<const StudyEntry> studies() { return kStudies; }

std::string study_json(const Study& study) {
  Json rows = Json::array();
  for (const StudyRow& row : study.rows) {
    Json one = {{"table", row.table},
                {"row", row.row},
                {"published", json_of(row.published)},
                {"ours", json_of(row.ours)},
                {"error", nullptr}};
    if (const auto error = row.error()) one["error"] = *error;
    if (!row.unit.empty()) one["unit"] = row.unit;
    if (!row.note.empty()) one["note"] = row.note;
    rows.push_back(std::move(one));
  }
  return rows.dump(2) + "\n";
}

std::string study_markdown(const Study& study, const std::string& command) {
  std::string text = fmt::format("# {}\n\nMade by `{}`.\n", study.title, command);
  std::string table;
  for (const StudyRow& row : study.rows) {
    if (row.table != table) {
      table = row.table;
      text += fmt::format("\n## {}\n\n| | published | ours | error |\n|---|---:|---:|---:|\n", table);
    }
    text += fmt::format("| {} | {} | {} | {} |\n", title_of(row), text_of(row.published), text_of(row.ours),
                        text_of_error(row));
  }
  text += "\n## Deviations and fitted rows\n\n";
  std::string list;
  for (const StudyRow& row : study.rows)
    if (row.deviates() || !row.note.empty())
      list +=
          fmt::format("- {}, {}: {}\n", row.table, row.row, row.note.empty() ? "not explained" : row.note);
  text += list.empty() ? "None.\n" : list;
  if (!study.assumptions.empty()) text += "\n## Assumptions\n\n";
  for (const std::string& sentence : study.assumptions) text += fmt::format("- {}\n", sentence);
  return text;
}

int study_command(std::span<const std::string> words) {
  const std::string help = usage();
  return run_command({"study", help.c_str()}, words, [&] {
    if (words[0].starts_with("-")) input_error("unknown argument '{}'; the first names the study", words[0]);
    const StudyEntry& entry = find_study(words[0]);
    const Options options(words.subspan(1), {"--json", "--markdown", "--rounds"}, {});
    if (options.has("--rounds") && !entry.measure)
      input_error("--rounds: nothing is measured by the study '{}'", entry.name);
    const auto rounds = static_cast<int>(options.integer("--rounds", 5, 1, 1000));
    const Study study = entry.measure ? entry.measure(rounds) : entry.run();
    print(study);
    if (const auto file = options.find("--json")) write_file_atomically(*file, study_json(study));
    if (const auto file = options.find("--markdown"))
      write_file_atomically(
          *file,
          study_markdown(study, fmt::format("trainer study {}{}", entry.name,
                                            entry.measure ? fmt::format(" --rounds {}", rounds) : "")));
  });
}

}  // namespace trainer
