// Logging: one logger, to standard error, prefixed with the rank when there are several.
#pragma once

#include <spdlog/spdlog.h>

namespace trainer {

// Called once by a program after it knows its rank. Ranks other than 0 log warnings and errors only.
void configure_logging(int rank, int world_size);

}  // namespace trainer
