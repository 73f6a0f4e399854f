// `trainer ablate`: a config, its mechanisms one by one switched off, and the usual other plans, measured
// beside each other.
#pragma once

#include <span>
#include <string>

namespace trainer {

// Returns the exit code.
int ablate_command(std::span<const std::string> arguments);

}  // namespace trainer
