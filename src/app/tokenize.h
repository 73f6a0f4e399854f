// `trainer tokenize`: text to an indexed dataset, and the making of vocabularies.
#pragma once

#include <span>
#include <string>

namespace trainer {

// `arguments` are those after the word "tokenize". Returns the exit code: 0, 2 for wrong arguments or input
// (said on standard error), 1 for failures while running.
int tokenize_command(std::span<const std::string> arguments);

}  // namespace trainer
