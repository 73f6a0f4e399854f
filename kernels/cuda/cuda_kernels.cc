// The kernels of CUDA devices: products by cuBLASLt where it has an algorithm for them, else by tiles;
// attention by cuDNN where it serves, else by blocks.
#if defined(TRAINER_CUDA)

#include "ops/cuda_kernels.h"

#include <algorithm>
#include <utility>

#include "cuda/cublaslt_gemm.h"
#include "cuda/cudnn_attention.h"
#include "cuda/kernel_set.h"

namespace trainer {
namespace {

class CublasLtProducts final : public cuda::Products {
 public:
  explicit CublasLtProducts(std::unique_ptr<cuda::Products> tiles) : tiles_(std::move(tiles)) {}
  std::string name() const override { return "cuBLASLt"; }
  size_t workspace_bytes(const WorkspaceShape& shape) const override {
    return std::max(cuda::CublasLtGemm::kWorkspaceBytes, tiles_->workspace_bytes(shape));
  }
  void nt(Ref y, ConstRef x, ConstRef w, ConstRef bias, int64_t m, int64_t n, int64_t k,
          std::span<std::byte> workspace, cuda::Stream stream) override {
    if (!library_.nt(y, x, w, bias, m, n, k, workspace, stream))
      tiles_->nt(y, x, w, bias, m, n, k, workspace, stream);
  }
  void nn(Ref dx, ConstRef dy, ConstRef w, int64_t m, int64_t n, int64_t k, bool accumulate,
          std::span<std::byte> workspace, cuda::Stream stream) override {
    if (!library_.nn(dx, dy, w, m, n, k, accumulate, workspace, stream))
      tiles_->nn(dx, dy, w, m, n, k, accumulate, workspace, stream);
  }
  void tn(float* dw, ConstRef dy, ConstRef x, int64_t m, int64_t n, int64_t k, bool accumulate,
          std::span<std::byte> workspace, cuda::Stream stream) override {
    if (!library_.tn(dw, dy, x, m, n, k, accumulate, workspace, stream))
      tiles_->tn(dw, dy, x, m, n, k, accumulate, workspace, stream);
  }

 private:
  cuda::CublasLtGemm library_;
  const std::unique_ptr<cuda::Products> tiles_;
};

}  // namespace

std::unique_ptr<KernelSet> make_cuda_kernels(void* stream, CudaLibraries libraries) {
  std::unique_ptr<cuda::Products> products = cuda::make_tile_products();
  std::unique_ptr<cuda::Attention> attention = cuda::make_block_attention();
  if (libraries == CudaLibraries::kUsed) {
    products = std::make_unique<CublasLtProducts>(std::move(products));
    attention = cuda::make_cudnn_attention(std::move(attention));
  }
  return std::make_unique<cuda::DeviceKernels>(std::move(products), std::move(attention),
                                               static_cast<cuda::Stream>(stream));
}

}  // namespace trainer

#endif
