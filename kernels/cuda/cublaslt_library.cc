#include "cuda/cublaslt_library.h"

#if defined(TRAINER_CUDA)

#include <dlfcn.h>

#include <string>

#include "base/error.h"

namespace trainer::cuda {
namespace {

template <class Function>
void find(void* library, Function& function, const char* name) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (!function) run_error("the cuBLASLt found lacks the function {}: {}", name, ::dlerror());
}

CublasLt load() {
  // The interface is fixed within a major version.
  const std::string file = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
  void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library)
    run_error(
        "cannot load {}, which matrix products on a GPU need: {}; add the CUDA toolkit's library folder to "
        "LD_LIBRARY_PATH",
        file, ::dlerror());
  CublasLt lt;
  find(library, lt.create, "cublasLtCreate");
  find(library, lt.destroy, "cublasLtDestroy");
  find(library, lt.status_name, "cublasLtGetStatusName");
  find(library, lt.status_string, "cublasLtGetStatusString");
  find(library, lt.matmul, "cublasLtMatmul");
  find(library, lt.find_algorithms, "cublasLtMatmulAlgoGetHeuristic");
  find(library, lt.create_description, "cublasLtMatmulDescCreate");
  find(library, lt.destroy_description, "cublasLtMatmulDescDestroy");
  find(library, lt.set_description, "cublasLtMatmulDescSetAttribute");
  find(library, lt.create_preference, "cublasLtMatmulPreferenceCreate");
  find(library, lt.destroy_preference, "cublasLtMatmulPreferenceDestroy");
  find(library, lt.set_preference, "cublasLtMatmulPreferenceSetAttribute");
  find(library, lt.create_layout, "cublasLtMatrixLayoutCreate");
  find(library, lt.destroy_layout, "cublasLtMatrixLayoutDestroy");
  return lt;
}

}  // namespace

const CublasLt& cublas_lt() {
  static const CublasLt lt = load();
  return lt;
}

}  // namespace trainer::cuda

#endif
