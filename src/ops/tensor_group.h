// Ranks that share every layer's work: each holds a part of the weights, and they exchange activations within
// a layer's forward and backward.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/tensor.h"

namespace trainer {

// Blocking; all ranks of the group make the same calls in the same order. Sums are taken in fp32 over the
// rank index by a fixed tree and rounded once, so all ranks get the same bits. Throws RunError when a peer is
// lost.
class TensorGroup {
 public:
  virtual ~TensorGroup() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // `data` is [size, bytes]: every rank's own part is copied to all others.
  virtual void all_gather(void* data, size_t bytes) = 0;
  // `data` is [size, count]: the own part becomes the sum of it over all ranks; the others are spoiled.
  virtual void reduce_scatter(Ref data, int64_t count) = 0;
  // `data` is [count]: it becomes the sum over all ranks.
  virtual void all_reduce(Ref data, int64_t count) = 0;
};

}  // namespace trainer
