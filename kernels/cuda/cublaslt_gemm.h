// Matrix products by cuBLASLt, with the meanings of gemm.h: dense row-major matrices, sums in fp32.
#pragma once

#if defined(TRAINER_CUDA)

#include <cublasLt.h>

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "ops/tensor.h"

namespace trainer::cuda {

// For one stream and one thread. What cuBLASLt chooses for a shape is kept, so that a shape has the same bits
// from its first product on. Sums that are split over k are added in a fixed order, in fp32.
class CublasLtGemm {
 public:
  // Of workspace for every product.
  static constexpr size_t kWorkspaceBytes = size_t{32} << 20;

  // `tf32`: products of fp32 matrices may round their operands to TF32. Throws RunError where the library
  // does not start.
  explicit CublasLtGemm(bool tf32 = false);
  ~CublasLtGemm();
  CublasLtGemm(const CublasLtGemm&) = delete;
  CublasLtGemm& operator=(const CublasLtGemm&) = delete;

  // Each returns false, and does nothing, where the library has no algorithm for these types, sizes and
  // addresses. Throws RunError when a product fails to start.
  //
  // y[M,N] = x[M,K] w[N,K]^T + bias[N] (bias may be null).
  bool nt(Ref y, ConstRef x, ConstRef w, ConstRef bias, int64_t m, int64_t n, int64_t k,
          std::span<std::byte> workspace, cudaStream_t stream);
  // dx[M,K] = dy[M,N] w[N,K], added to dx when `accumulate`.
  bool nn(Ref dx, ConstRef dy, ConstRef w, int64_t m, int64_t n, int64_t k, bool accumulate,
          std::span<std::byte> workspace, cudaStream_t stream);
  // dw[N,K] = dy[M,N]^T x[M,K], added to dw when `accumulate`.
  bool tn(float* dw, ConstRef dy, ConstRef x, int64_t m, int64_t n, int64_t k, bool accumulate,
          std::span<std::byte> workspace, cudaStream_t stream);

 private:
  // d = a b (+ d), column-major as the library has it: a [rows, inner] and b [inner, columns] after their
  // transpositions. `bias`: one element per row.
  struct Shape {
    int64_t rows = 0, columns = 0, inner = 0;
    bool transpose_a = false, transpose_b = false, accumulate = false, has_bias = false;
    DType operands = DType::kF32, result = DType::kF32, bias = DType::kF32;
    uint32_t alignment_a = 0, alignment_b = 0, alignment_d = 0, alignment_bias = 0;  // bytes
    size_t workspace = 0;
    auto operator<=>(const Shape&) const = default;
  };
  struct Plan;

  bool multiply(Shape shape, void* d, const void* a, const void* b, const void* bias,
                std::span<std::byte> workspace, cudaStream_t stream);
  const Plan& plan_of(const Shape& shape);

  const bool tf32_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<Shape, std::unique_ptr<Plan>> plans_;
};

}  // namespace trainer::cuda

#endif
