// The kernels of CUDA devices, for the floors above.
#pragma once

#include <memory>

#include "ops/kernel_set.h"

namespace trainer {

enum class CudaLibraries {
  kUsed,  // products of cuBLASLt and attention of cuDNN, our own where they do not serve
  kNone,  // our own
};

// Calls start work in `stream`, a cudaStream_t of the calling thread's device, and return before it is done,
// except those that return a result. Every pointer is to memory that the device reaches, but for
// AttentionShape::document_starts. Throws RunError in builds without the CUDA toolkit.
std::unique_ptr<KernelSet> make_cuda_kernels(void* stream, CudaLibraries libraries = CudaLibraries::kUsed);

}  // namespace trainer
