// cuBLASLt, loaded when it is first used: merely being linked to it costs a program 140 MiB of memory and the
// time to fill them, on machines without a GPU too.
#pragma once

#if defined(TRAINER_CUDA)

#include <cublasLt.h>

namespace trainer::cuda {

struct CublasLt {
  decltype(&::cublasLtCreate) create;
  decltype(&::cublasLtDestroy) destroy;
  decltype(&::cublasLtGetStatusName) status_name;
  decltype(&::cublasLtGetStatusString) status_string;
  decltype(&::cublasLtMatmul) matmul;
  decltype(&::cublasLtMatmulAlgoGetHeuristic) find_algorithms;
  decltype(&::cublasLtMatmulDescCreate) create_description;
  decltype(&::cublasLtMatmulDescDestroy) destroy_description;
  decltype(&::cublasLtMatmulDescSetAttribute) set_description;
  decltype(&::cublasLtMatmulPreferenceCreate) create_preference;
  decltype(&::cublasLtMatmulPreferenceDestroy) destroy_preference;
  decltype(&::cublasLtMatmulPreferenceSetAttribute) set_preference;
  decltype(&::cublasLtMatrixLayoutCreate) create_layout;
  decltype(&::cublasLtMatrixLayoutDestroy) destroy_layout;
};

// Stays loaded. Throws RunError where the library is not found or lacks a function.
const CublasLt& cublas_lt();

}  // namespace trainer::cuda

#endif
