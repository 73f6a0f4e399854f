// What every backend says of a label that is no word of the vocabulary.
#pragma once

#include "base/error.h"
#include "base/label.h"

namespace trainer {

[[noreturn]] inline void refuse_label(int32_t label, int64_t token, int64_t vocabulary) {
  input_error(
      "label {} of token {} is outside the vocabulary of {} (only {} marks a token without a label): the "
      "dataset does not belong to this model or its tokenizer",
      label, token, vocabulary, kIgnoredLabel);
}

}  // namespace trainer
