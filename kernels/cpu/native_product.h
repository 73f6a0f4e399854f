// Matrix products of bf16 operands on processors that multiply bf16 themselves (AVX512_BF16, AMX), by oneDNN.
//
// oneDNN may divide a sum over k between its threads. So C is cut here into blocks that depend on its shape
// alone, and each block is one call that is confined to the thread it is made on: bits do not depend on the
// number of threads.
#pragma once

#include <memory>
#include <span>

#include "cpu/blocked_product.h"

namespace trainer {

class NativeProduct {
 public:
  // Whether oneDNN finds bf16 instructions on this processor.
  static bool available();

  explicit NativeProduct(int threads);
  ~NativeProduct();

  size_t workspace_bytes() const;
  // Computes p, whose A and B are bf16. False if oneDNN has no fitting implementation within the workspace,
  // which depends on the shape alone; then nothing was done.
  bool run(const MatrixProduct& p, std::span<std::byte> workspace);

 private:
  struct Primitives;
  const int threads_;
  std::unique_ptr<Primitives> primitives_;
};

}  // namespace trainer
