// The backends of `gemm`.
#pragma once

#include "support/program.h"

namespace trainer {

// Arguments without --backend. Throw InputError for those that the backend does not have. `backend`: one of
// bench_backends().
Report gemm_on_kernels(const std::string& backend, const Words& words);
Report gemm_on_dsp(const Words& words);

}  // namespace trainer
