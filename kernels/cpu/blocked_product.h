// Matrix products of any layout, accumulated in fp32: operands are packed block by block into the workspace
// and multiplied there by the tiles of tile_table.h. fp32 and bf16 operands mix freely, unless the slots of
// the tiles are pairs: then both are bf16.
//
// The sum over k is cut into parts that depend on k alone, and no part is divided between threads. So an
// element of C has the same bits for any number of threads, and whatever m is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cpu/tile_table.h"

namespace trainer {

// Where the softmax of each panel of a row goes (PanelSoftmax), [m, panels of n]. A label is a column once
// `first` is subtracted, or lies elsewhere.
struct RowSoftmax {
  float *largest, *total;
  const int32_t* labels;  // [m]
  int32_t first;
  float* label_logits;  // [m]
};

// C[m, n] = A[m, k] B[k, n] (+ bias[n]) (+ C), or with `softmax` the weights of each panel of these sums.
// Strides count elements; a row of C is contiguous, of A and B one of the two strides is 1.
struct MatrixProduct {
  Ref c;
  int64_t c_stride;
  ConstRef a;
  int64_t a_row, a_k;
  ConstRef b;
  int64_t b_column, b_k;
  ConstRef bias;  // may be null
  bool add;
  int64_t m, n, k;
  const RowSoftmax* softmax = nullptr;  // then neither bias nor add
};

// Bytes of workspace for any product within m x n x k.
size_t blocked_product_bytes(const TileTable& tiles, int threads, int64_t m, int64_t n, int64_t k);
void blocked_product(const TileTable& tiles, int threads, const MatrixProduct& p,
                     std::span<std::byte> workspace);

}  // namespace trainer
