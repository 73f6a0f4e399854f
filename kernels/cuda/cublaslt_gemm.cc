#include "cuda/cublaslt_gemm.h"

#if defined(TRAINER_CUDA)

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "cuda/cublaslt_library.h"

namespace trainer::cuda {
namespace {

void check_blas(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    run_error("{} failed: cuBLAS: {} ({})", what, cublas_lt().status_string(status),
              cublas_lt().status_name(status));
}

cudaDataType_t type_of(DType type) { return type == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF; }

// What the library has to know of an address: the largest power of two that divides it, up to what any
// algorithm asks for.
uint32_t alignment_of(const void* data) {
  constexpr uintptr_t kMost = 256;
  const auto address = reinterpret_cast<uintptr_t>(data) | kMost;
  return static_cast<uint32_t>(address & -address);
}

// Column-major [rows, columns] without gaps.
class Layout {
 public:
  Layout(DType type, int64_t rows, int64_t columns) {
    check_blas(cublas_lt().create_layout(&layout_, type_of(type), static_cast<uint64_t>(rows),
                                         static_cast<uint64_t>(columns), rows),
               "cublasLtMatrixLayoutCreate");
  }
  ~Layout() { cublas_lt().destroy_layout(layout_); }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;
  cublasLtMatrixLayout_t get() const { return layout_; }

 private:
  cublasLtMatrixLayout_t layout_ = nullptr;
};

class Description {
 public:
  explicit Description(cublasComputeType_t compute) {
    check_blas(cublas_lt().create_description(&description_, compute, CUDA_R_32F),
               "cublasLtMatmulDescCreate");
  }
  ~Description() { cublas_lt().destroy_description(description_); }
  Description(const Description&) = delete;
  Description& operator=(const Description&) = delete;
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) const {
    check_blas(cublas_lt().set_description(description_, attribute, &value, sizeof value),
               "cublasLtMatmulDescSetAttribute");
  }
  cublasLtMatmulDesc_t get() const { return description_; }

 private:
  cublasLtMatmulDesc_t description_ = nullptr;
};

class Preference {
 public:
  Preference() { check_blas(cublas_lt().create_preference(&preference_), "cublasLtMatmulPreferenceCreate"); }
  ~Preference() { cublas_lt().destroy_preference(preference_); }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;
  template <class T>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, const T& value) const {
    check_blas(cublas_lt().set_preference(preference_, attribute, &value, sizeof value),
               "cublasLtMatmulPreferenceSetAttribute");
  }
  cublasLtMatmulPreference_t get() const { return preference_; }

 private:
  cublasLtMatmulPreference_t preference_ = nullptr;
};

}  // namespace

struct CublasLtGemm::Plan {
  Plan(const Shape& s, cublasComputeType_t compute)
      : description(compute),
        a(s.operands, s.transpose_a ? s.inner : s.rows, s.transpose_a ? s.rows : s.inner),
        b(s.operands, s.transpose_b ? s.columns : s.inner, s.transpose_b ? s.inner : s.columns),
        d(s.result, s.rows, s.columns) {}
  Description description;
  Layout a, b, d;
  cublasLtMatmulAlgo_t algorithm{};
  bool found = false;
};

CublasLtGemm::CublasLtGemm(bool tf32) : tf32_(tf32) {
  check_blas(cublas_lt().create(&handle_), "cublasLtCreate");
}

CublasLtGemm::~CublasLtGemm() {
  plans_.clear();
  cublas_lt().destroy(handle_);
}

const CublasLtGemm::Plan& CublasLtGemm::plan_of(const Shape& s) {
  std::unique_ptr<Plan>& plan = plans_[s];
  if (plan) return *plan;
  const bool rounded = tf32_ && s.operands == DType::kF32;
  plan = std::make_unique<Plan>(s, rounded ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F);
  const auto operation = [](bool transpose) { return transpose ? CUBLAS_OP_T : CUBLAS_OP_N; };
  plan->description.set(CUBLASLT_MATMUL_DESC_TRANSA, operation(s.transpose_a));
  plan->description.set(CUBLASLT_MATMUL_DESC_TRANSB, operation(s.transpose_b));
  if (s.has_bias) {
    plan->description.set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    plan->description.set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(s.bias));
  }
  const Preference preference;
  preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, s.workspace);
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, s.alignment_a);
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, s.alignment_b);
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, s.alignment_d);
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, s.alignment_d);
  // Partial sums over k in fp32 in the workspace, added in order; never in the result's type or place.
  preference.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                 static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  cublasLtMatmulHeuristicResult_t best{};
  int count = 0;
  const cublasStatus_t status =
      cublas_lt().find_algorithms(handle_, plan->description.get(), plan->a.get(), plan->b.get(),
                                  plan->d.get(), plan->d.get(), preference.get(), 1, &best, &count);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) check_blas(status, "cublasLtMatmulAlgoGetHeuristic");
  plan->found = status == CUBLAS_STATUS_SUCCESS && count > 0 && best.state == CUBLAS_STATUS_SUCCESS;
  plan->algorithm = best.algo;
  return *plan;
}

bool CublasLtGemm::multiply(Shape s, void* d, const void* a, const void* b, const void* bias,
                            std::span<std::byte> workspace, cudaStream_t stream) {
  s.alignment_a = alignment_of(a);
  s.alignment_b = alignment_of(b);
  s.alignment_d = alignment_of(d);
  s.has_bias = bias != nullptr;
  if (bias) s.alignment_bias = alignment_of(bias);
  s.workspace = std::min(workspace.size(), kWorkspaceBytes);
  const Plan& plan = plan_of(s);
  if (!plan.found) return false;
  if (bias) plan.description.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  const float one = 1, beta = s.accumulate ? 1 : 0;
  check_blas(cublas_lt().matmul(handle_, plan.description.get(), &one, a, plan.a.get(), b, plan.b.get(),
                                &beta, d, plan.d.get(), d, plan.d.get(), &plan.algorithm, workspace.data(),
                                s.workspace, stream),
             "cublasLtMatmul");
  return true;
}

// A row-major matrix is its transpose, column-major. So y^T[N,M] = w[N,K] x^T[K,M], where w is given as
// [K,N], to be transposed, and x^T as it is; likewise below.
bool CublasLtGemm::nt(Ref y, ConstRef x, ConstRef w, ConstRef bias, int64_t m, int64_t n, int64_t k,
                      std::span<std::byte> workspace, cudaStream_t stream) {
  require(x.dtype == w.dtype, "a product of matrices of two element types");
  if (m == 0 || n == 0) return true;
  return multiply({.rows = n,
                   .columns = m,
                   .inner = k,
                   .transpose_a = true,
                   .operands = x.dtype,
                   .result = y.dtype,
                   .bias = bias.dtype},
                  y.data, w.data, x.data, bias.data, workspace, stream);
}

// dx^T[K,M] = w^T[K,N] dy^T[N,M].
bool CublasLtGemm::nn(Ref dx, ConstRef dy, ConstRef w, int64_t m, int64_t n, int64_t k, bool accumulate,
                      std::span<std::byte> workspace, cudaStream_t stream) {
  require(dy.dtype == w.dtype, "a product of matrices of two element types");
  if (m == 0 || k == 0) return true;
  return multiply({.rows = k,
                   .columns = m,
                   .inner = n,
                   .accumulate = accumulate,
                   .operands = dy.dtype,
                   .result = dx.dtype},
                  dx.data, w.data, dy.data, nullptr, workspace, stream);
}

// dw^T[K,N] = x^T[K,M] dy[M,N], where dy is given as [N,M], to be transposed.
bool CublasLtGemm::tn(float* dw, ConstRef dy, ConstRef x, int64_t m, int64_t n, int64_t k, bool accumulate,
                      std::span<std::byte> workspace, cudaStream_t stream) {
  require(dy.dtype == x.dtype, "a product of matrices of two element types");
  if (m == 0 || n == 0 || k == 0) return true;
  return multiply({.rows = k,
                   .columns = n,
                   .inner = m,
                   .transpose_b = true,
                   .accumulate = accumulate,
                   .operands = dy.dtype,
                   .result = DType::kF32},
                  dw, x.data, dy.data, nullptr, workspace, stream);
}

}  // namespace trainer::cuda

#endif
