// Logging: one logger, to standard error, prefixed with the rank when there are several.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

namespace trainer {

// Called once by a program after it knows its rank. Ranks other than 0 log warnings and errors only.
void configure_logging(int rank, int world_size);

enum class LogLevel { kInfo, kWarning };
void write_log(LogLevel level, const std::string& message);

template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  write_log(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  write_log(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace trainer
