// `trainer train`: one rank of a training job.
#pragma once

#include <span>
#include <string>

namespace trainer {

// `arguments` are those after the word "train". Returns the exit code.
int train_command(std::span<const std::string> arguments);

}  // namespace trainer
