#include "cuda/gemm.h"
#include "cuda/gemm_arguments.h"
#include "cuda/shape_checks.h"

namespace trainer::TRAINER_DEVICE_NAMESPACE {
namespace {

bool gemm_aligned(const void* data, size_t bytes) { return reinterpret_cast<uintptr_t>(data) % bytes == 0; }

template <class T>
GemmOperand<T> gemm_operand(ConstRef matrix, int64_t rows, int64_t columns) {
  return {static_cast<const T*>(matrix.data), static_cast<int>(rows), static_cast<int>(columns),
          gemm_aligned(matrix.data, 16) && columns * static_cast<int64_t>(sizeof(T)) % 16 == 0};
}

GemmResult gemm_result(Ref c, ConstRef bias, int64_t rows, int64_t columns, bool accumulate) {
  const bool is_float = c.dtype == DType::kF32, bias_is_float = bias.dtype == DType::kF32;
  return {.as_float = is_float ? c.f32() : nullptr,
          .as_bf16 = is_float ? nullptr : static_cast<Bf16*>(c.data),
          .rows = static_cast<int>(rows),
          .columns = static_cast<int>(columns),
          .pairs = columns % 2 == 0 && gemm_aligned(c.data, 2 * size_of(c.dtype)),
          .accumulate = accumulate,
          .bias_float = bias_is_float ? static_cast<const float*>(bias.data) : nullptr,
          .bias_bf16 = bias_is_float ? nullptr : static_cast<const Bf16*>(bias.data)};
}

// c [m, n] from sums over k; the operands as they lie in memory.
void multiply(GemmForm form, const GemmResult& result, ConstRef a, ConstRef b, int64_t m, int64_t n,
              int64_t k, Stream stream) {
  check_product(a.dtype, b.dtype, m, n, k);
  if (m == 0 || n == 0) return;
  const auto run = [&]<class T>(T) {
    const GemmOperand<T> left = form == GemmForm::kTN ? gemm_operand<T>(a, k, m) : gemm_operand<T>(a, m, k);
    const GemmOperand<T> right = form == GemmForm::kNT ? gemm_operand<T>(b, n, k) : gemm_operand<T>(b, k, n);
    run_gemm(form, {left, right, static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), result},
             stream);
  };
  if (a.dtype == DType::kF32) {
    run(float{});
  } else {
    run(Bf16{});
  }
}

}  // namespace

void gemm_nt(Ref y, ConstRef x, ConstRef w, ConstRef bias, int64_t m, int64_t n, int64_t k, Stream stream) {
  multiply(GemmForm::kNT, gemm_result(y, bias, m, n, false), x, w, m, n, k, stream);
}

void gemm_nn(Ref dx, ConstRef dy, ConstRef w, int64_t m, int64_t n, int64_t k, bool accumulate,
             Stream stream) {
  multiply(GemmForm::kNN, gemm_result(dx, {}, m, k, accumulate), dy, w, m, k, n, stream);
}

void gemm_tn(float* dw, ConstRef dy, ConstRef x, int64_t m, int64_t n, int64_t k, bool accumulate,
             Stream stream) {
  multiply(GemmForm::kTN, gemm_result(ref(dw), {}, n, k, accumulate), dy, x, n, k, m, stream);
}

}  // namespace trainer::TRAINER_DEVICE_NAMESPACE
