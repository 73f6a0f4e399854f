// The backends of `attention`.
#pragma once

#include "support/program.h"

namespace trainer {

// Arguments without --backend. Throw InputError for those that the backend does not have.
Report attention_on_host(const Words& words);
Report attention_on_dsp(const Words& words);

}  // namespace trainer
