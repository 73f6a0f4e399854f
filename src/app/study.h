// `trainer study NAME`: published figures beside ours, made again by one command.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace trainer {

// A number, or a text such as a set of segments; empty: there is none.
using StudyValue = std::variant<std::monostate, double, std::string>;

enum class StudyError {
  kDifference,  // ours - published, in the unit of both (percentages: points)
  kRelative,    // ours / published - 1
  kEqual        // texts: 0 when equal, else 1
};

struct StudyRow {
  std::string table, row;
  StudyValue published, ours;
  StudyError measure = StudyError::kRelative;
  std::string unit;  // "%", "ms", "GB"; "" for texts and plain numbers
  std::string note;  // why ours differs, or how it came to agree; listed below the tables

  // Empty where a value is missing.
  std::optional<double> error() const;
  // By more than 1 % of the published value; of texts, at all.
  bool deviates() const;
};

struct Study {
  std::string title;
  std::vector<std::string> assumptions;  // sentences, said below the tables
  std::vector<StudyRow> rows;            // rows of one table stand together
};

// Appends a row. `why` becomes its note where it deviates.
StudyRow& add_row(Study& study, std::string table, std::string row, StudyValue published, StudyValue ours,
                  StudyError measure, std::string unit = "", std::string why = "");

struct StudyEntry {
  const char* name;
  const char* summary;
  Study (*run)() = nullptr;
  Study (*measure)(int rounds) = nullptr;  // of one that runs things on this machine
};

// Each has a line in the list of study.cc.
Study lazytrain_study();
Study ratrain_study();
Study roundpipe_study();
Study sppo_study();
Study this_machine_study(int rounds);

std::span<const StudyEntry> studies();

// One JSON array of {table, row, published, ours, error, unit, note}.
std::string study_json(const Study& study);
// `command` is what made it.
std::string study_markdown(const Study& study, const std::string& command);

// `trainer study NAME --json FILE --markdown FILE`. Returns the exit code.
int study_command(std::span<const std::string> arguments);

}  // namespace trainer
