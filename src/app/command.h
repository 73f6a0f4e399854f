// What every subcommand and benchmark program does with --help and with errors.
#pragma once

#include <algorithm>
#include <cstdio>
#include <exception>
#include <optional>
#include <span>
#include <string>

#include "base/error.h"
#include "base/log.h"

namespace trainer {

struct Command {
  const char* name;   // the word after "trainer", or of the program itself
  const char* usage;  // ends with a newline
  bool needs_arguments = true;
  bool is_program = false;  // not a subcommand of trainer
};

// The exit code when the command is over before it began: 0 when usage was asked for (it goes to standard
// output), 2 when all arguments are missing (usage goes to standard error).
inline std::optional<int> answer_usage(const Command& command, std::span<const std::string> arguments) {
  if (arguments.empty() && command.needs_arguments) {
    std::fputs(command.usage, stderr);
    return 2;
  }
  const auto asks = [](const std::string& word) { return word == "--help" || word == "-h"; };
  if (std::none_of(arguments.begin(), arguments.end(), asks)) return std::nullopt;
  std::fputs(command.usage, stdout);
  return 0;
}

inline void print_error(const Command& command, const char* what) {
  std::fprintf(stderr, "%s%s: error: %s\n", command.is_program ? "" : "trainer ", command.name, what);
}

// Runs `body`, a command of one process. Returns the exit code: 0, that of an Error, or 1 for any other
// exception; what went wrong is said on standard error.
template <class Body>
int run_command(const Command& command, std::span<const std::string> arguments, Body&& body) {
  if (const auto code = answer_usage(command, arguments)) return *code;
  try {
    configure_logging(0, 1);
    body();
    return 0;
  } catch (const Error& error) {
    print_error(command, error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    print_error(command, error.what());
    return 1;
  }
}

}  // namespace trainer
