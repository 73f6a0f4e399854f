// Which of the two builds of the kernels this is: for devices, by nvcc (TRAINER_CUDA is defined), or for the
// SIMT layer on the host. They live in different namespaces, so that one program can have both.
#pragma once

#include <cstddef>

#if defined(TRAINER_CUDA)
#include <cuda_runtime.h>
#define TRAINER_DEVICE_NAMESPACE cuda
#else
#include "simt/simt.h"
#define TRAINER_DEVICE_NAMESPACE simt
#endif

#if defined(TRAINER_CUDA)
namespace trainer::cuda {

using Stream = cudaStream_t;

// Throws RunError, naming `what`, unless `status` is success.
void check(cudaError_t status, const char* what);

}  // namespace trainer::cuda
#endif

namespace trainer::TRAINER_DEVICE_NAMESPACE {

// In the order of the stream; either side may be memory of the host. Memory of the host that is not pinned
// may be used again on return; otherwise see `wait`.
void copy(void* to, const void* from, size_t bytes, Stream stream);
void fill(void* to, unsigned char value, size_t bytes, Stream stream);
// Until everything in the stream is done. Throws RunError when something in it failed.
void wait(Stream stream);

}  // namespace trainer::TRAINER_DEVICE_NAMESPACE
