// Errors: what was wrong, where (file, key, rank), and what to do about it.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace trainer {

// Base of every error the library throws on purpose. `exit_code` is what a program that cannot go on returns.
class Error : public std::runtime_error {
 public:
  Error(int exit_code, const std::string& message) : std::runtime_error(message), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

// The user's input (config, dataset, tokenizer, checkpoint, model folder, arguments) is wrong. Exit code 2.
class InputError : public Error {
 public:
  explicit InputError(const std::string& message) : Error(2, message) {}
};

// Something failed while running (a rank died, the disk is full, a loss is not finite). Exit code 1.
class RunError : public Error {
 public:
  explicit RunError(const std::string& message) : Error(1, message) {}
};

template <class... Args>
[[noreturn]] void input_error(fmt::format_string<Args...> format, Args&&... args) {
  throw InputError(fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
[[noreturn]] void run_error(fmt::format_string<Args...> format, Args&&... args) {
  throw RunError(fmt::format(format, std::forward<Args>(args)...));
}

// A broken invariant of the library itself; the message names it.
template <class... Args>
void require(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) throw std::logic_error("internal error: " + fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace trainer
