// Keeps the newest checkpoints and removes the others at once.
#pragma once

#include "checkpoint/training_checkpoint.h"

namespace trainer::testing {

inline void rotate_checkpoints(const std::filesystem::path& root, int keep_last) {
  for (const auto& folder : retire_checkpoints(root, keep_last)) abandon_checkpoint(folder);
}

}  // namespace trainer::testing
