// `trainer convert`: a training checkpoint or a Hugging Face folder to a Hugging Face folder.
#pragma once

#include <span>
#include <string>

namespace trainer {

// `arguments` are those after the word "convert". Returns the exit code: 0, 2 for wrong arguments or input
// (said on standard error), 1 for failures while running.
int convert_command(std::span<const std::string> arguments);

}  // namespace trainer
