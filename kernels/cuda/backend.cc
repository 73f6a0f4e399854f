#include "cuda/backend.h"

#include <cstring>

#include "base/error.h"

namespace trainer::TRAINER_DEVICE_NAMESPACE {

#if defined(TRAINER_CUDA)

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess)
    run_error("{}: CUDA: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status));
}

void copy(void* to, const void* from, size_t bytes, Stream stream) {
  if (bytes > 0) check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "copy");
}
void fill(void* to, unsigned char value, size_t bytes, Stream stream) {
  if (bytes > 0) check(cudaMemsetAsync(to, value, bytes, stream), "fill");
}
void wait(Stream stream) { check(cudaStreamSynchronize(stream), "waiting for the device"); }

#else

void copy(void* to, const void* from, size_t bytes, Stream) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}
void fill(void* to, unsigned char value, size_t bytes, Stream) {
  if (bytes > 0) std::memset(to, value, bytes);
}
void wait(Stream) {}

#endif

}  // namespace trainer::TRAINER_DEVICE_NAMESPACE
