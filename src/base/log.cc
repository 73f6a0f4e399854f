#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

namespace trainer {

void configure_logging(int rank, int world_size) {
  auto logger = std::make_shared<spdlog::logger>("trainer", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_pattern(world_size > 1 ? fmt::format("[%H:%M:%S] [rank {}] %^%l%$ %v", rank) : "[%H:%M:%S] %^%l%$ %v");
  logger->set_level(rank == 0 ? spdlog::level::info : spdlog::level::warn);
  spdlog::set_default_logger(std::move(logger));
}

void write_log(LogLevel level, const std::string& message) {
  spdlog::log(level == LogLevel::kInfo ? spdlog::level::info : spdlog::level::warn, message);
}

}  // namespace trainer
