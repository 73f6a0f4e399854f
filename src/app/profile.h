// `trainer profile`: this machine as a platform file.
#pragma once

#include <span>
#include <string>

namespace trainer {

// `trainer profile CONFIG... [options]`. Returns the exit code.
int profile_command(std::span<const std::string> arguments);

}  // namespace trainer
