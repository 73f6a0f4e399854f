// Matrix products for bf16 (tensor cores, sums in fp32) and fp32 (plain multiply-add). Every element is one
// sum over k in a fixed order, which neither m nor n nor its place change.
//
// Matrices are dense and row-major. Rows of operands that begin at multiples of 16 bytes are copied in the
// background; others are read element by element. Nothing is allocated and nothing waits: errors of the
// arguments throw std::logic_error.
#pragma once

#include <cstdint>

#include "cuda/backend.h"
#include "ops/tensor.h"

namespace trainer::TRAINER_DEVICE_NAMESPACE {

// y[M,N] = x[M,K] w[N,K]^T + bias[N] (bias may be null). x and w have one type; y and bias may have the other
// one.
void gemm_nt(Ref y, ConstRef x, ConstRef w, ConstRef bias, int64_t m, int64_t n, int64_t k, Stream stream);
// dx[M,K] = dy[M,N] w[N,K], added to dx when `accumulate`. dy and w have one type.
void gemm_nn(Ref dx, ConstRef dy, ConstRef w, int64_t m, int64_t n, int64_t k, bool accumulate,
             Stream stream);
// dw[N,K] = dy[M,N]^T x[M,K], added to dw when `accumulate`. dy and x have one type.
void gemm_tn(float* dw, ConstRef dy, ConstRef x, int64_t m, int64_t n, int64_t k, bool accumulate,
             Stream stream);

}  // namespace trainer::TRAINER_DEVICE_NAMESPACE
