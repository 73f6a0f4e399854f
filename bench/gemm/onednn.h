// Products by oneDNN, beside ours.
#pragma once

#include <cstdint>
#include <functional>

#include "ops/tensor.h"

namespace trainer {

// Elements of row r and column c are r * row_stride + c * column_stride apart from the first.
struct OneDnnMatrix {
  void* data;
  DType dtype;
  int64_t row_stride, column_stride;
};

// Computes C[rows, columns] = A[rows, depth] B[depth, columns] whenever it is called. Empty in builds that
// did not find oneDNN.
std::function<void()> onednn_product(const OneDnnMatrix& a, const OneDnnMatrix& b, const OneDnnMatrix& c,
                                     int64_t rows, int64_t depth, int64_t columns, int threads);

}  // namespace trainer
