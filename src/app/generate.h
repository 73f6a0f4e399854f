// `trainer generate`: text that a model writes after a prompt.
#pragma once

#include <span>
#include <string>

namespace trainer {

// `arguments` are those after the word "generate". Text goes to standard output as it is made. Returns the
// exit code: 0, 2 for wrong arguments or input (said on standard error), 1 for failures while running.
int generate_command(std::span<const std::string> arguments);

}  // namespace trainer
