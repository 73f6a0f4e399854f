// What a build without the kernels of CUDA devices has instead of them.
#include "base/error.h"
#include "ops/cuda_kernels.h"

namespace trainer {

std::unique_ptr<KernelSet> make_cuda_kernels(void*, CudaLibraries) {
  run_error("this program was built without the kernels of CUDA devices");
}

}  // namespace trainer
