#include "support/program.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "app/command.h"
#include "base/error.h"

namespace trainer {

int run_program(const BenchProgram& program, int argc, char** argv,
                const std::function<Report(const Words&)>& measure) {
  Words words(argv + 1, argv + argc);
  const bool json = std::erase(words, "--json") > 0;
  const Command command{program.name, program.usage.c_str(), program.needs_arguments, true};
  return run_command(command, words, [&] {
    const Report report = measure(words);
    if (json)
      fmt::print("{}\n", report.json.dump(2));
    else
      report.print(report.json);
  });
}

std::string command_line(const char* name, const std::string& backend, const Words& words) {
  return fmt::format("{} --backend {}{}{}", name, backend, words.empty() ? "" : " ", fmt::join(words, " "));
}

std::string take_backend(Words& words, const std::vector<std::string>& backends) {
  const std::string option = "--backend";
  for (auto word = words.begin(); word != words.end(); ++word) {
    if (*word != option && !word->starts_with(option + "=")) continue;
    const bool apart = *word == option;
    if (apart && word + 1 == words.end()) input_error("{} needs a value", option);
    const std::string name = apart ? *(word + 1) : word->substr(option.size() + 1);
    if (std::find(backends.begin(), backends.end(), name) == backends.end())
      input_error("{}: expected one of {}, found '{}'", option, fmt::join(backends, ", "), name);
    words.erase(word, word + (apart ? 2 : 1));
    return name;
  }
  return backends.front();
}

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace trainer
