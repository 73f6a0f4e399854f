// Labels of tokens.
#pragma once

#include <cstdint>

namespace trainer {

// Of a token from which nothing is to be predicted.
inline constexpr int32_t kIgnoredLabel = -100;

}  // namespace trainer
