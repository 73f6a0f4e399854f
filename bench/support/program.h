// What every benchmark program of one process does: --help, errors, --json or text.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/json.h"

namespace trainer {

// What a program has found: one JSON object, and how it is printed for people.
struct Report {
  Json json;
  void (*print)(const Json&) = nullptr;
};

using Words = std::vector<std::string>;

struct BenchProgram {
  const char* name;
  std::string usage;  // ends with a newline
  bool needs_arguments = false;
};

// All of main. `measure` is given the arguments without --json, which every program has. Returns the exit
// code.
int run_program(const BenchProgram& program, int argc, char** argv,
                const std::function<Report(const Words&)>& measure);

// "NAME --backend BACKEND WORDS...": what gives the same again.
std::string command_line(const char* name, const std::string& backend, const Words& words);

// Takes --backend NAME out of the words; the first of `backends` where there is none. Throws InputError for
// others.
std::string take_backend(Words& words, const std::vector<std::string>& backends);

double steady_seconds();

}  // namespace trainer
