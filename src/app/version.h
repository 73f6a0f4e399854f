#pragma once

#include <span>
#include <string>

namespace trainer {

// `trainer version`: what this program is and what it was built with. Returns the exit code.
int version_command(std::span<const std::string> arguments);

}  // namespace trainer
