// The backends of `attention`.
#pragma once

#include "support/program.h"

namespace trainer {

// Arguments without --backend. Throw InputError for those that the backend does not have. `backend`: one of
// bench_backends().
Report attention_on_kernels(const std::string& backend, const Words& words);
Report attention_on_dsp(const Words& words);

}  // namespace trainer
