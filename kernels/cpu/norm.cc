#include <cstring>

#include "base/error.h"
#include "cpu/host_kernels.h"
#include "cpu/parallel.h"

namespace trainer {
namespace {

// Gradients of weight and bias are summed over rows within each of these blocks of rows, then over the blocks
// in order: a number that threads do not change.
constexpr int64_t kRowBlocks = 32;

size_t partial_bytes(int64_t columns) {
  return static_cast<size_t>(kRowBlocks * 2 * columns) * sizeof(float);
}

}  // namespace

size_t HostKernels::norm_workspace_bytes(const WorkspaceShape& shape) const {
  return partial_bytes(std::max({shape.hidden, shape.widest_row, shape.head_dim}));
}

void HostKernels::norm_forward(const NormForward& a) {
  const DType type = a.x.dtype;
  require(a.y.dtype == type && a.weight.dtype == type && (!a.bias || a.bias.dtype == type) &&
              (!a.delta || (a.delta.dtype == type && a.sum && a.sum.dtype == type)),
          "norm_forward: its tensors have several element types");
  const int64_t rows = a.x_shape.outer * a.x_shape.inner;
  parallel_ranges(threads_, rows, rows_of_a_part(a.x_shape.columns),
                  [&](int64_t begin, int64_t end) { vector_.norm_forward(a, begin, end); });
}

void HostKernels::norm_backward(const NormBackward& a) {
  const DType type = a.x.dtype;
  require(a.weight.dtype == type && a.dx.dtype == type && (!a.dresidual || a.dresidual.dtype == type) &&
              (a.dy.dtype == type || a.dy.dtype == DType::kF32),
          "norm_backward: its tensors have element types that do not go together");
  const int64_t rows = a.x_shape.outer * a.x_shape.inner, columns = a.x_shape.columns;
  const int64_t blocks = std::min(kRowBlocks, rows);
  const bool wanted = a.dweight || a.dbias;
  float* partials = nullptr;
  if (wanted) {
    partials = reinterpret_cast<float*>(workspace(partial_bytes(columns), "norm_backward"));
    std::memset(partials, 0, static_cast<size_t>(blocks * 2 * columns) * sizeof(float));
  }
  const int64_t block_rows = std::max<int64_t>(1, rows / kRowBlocks);
  const int64_t grain = std::max<int64_t>(1, rows_of_a_part(columns) / block_rows);
  parallel_ranges(threads_, blocks, grain, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      float* dweight = a.dweight ? partials + block * 2 * columns : nullptr;
      float* dbias = a.dbias ? partials + (block * 2 + 1) * columns : nullptr;
      vector_.norm_backward(a, rows * block / blocks, rows * (block + 1) / blocks, dweight, dbias);
    }
  });
  for (int64_t block = 0; wanted && block < blocks; ++block) {
    const auto add_partial = [&](float* total, const float* partial) {
      if (total) vector_.sum(ref(total), ref(total), ref(partial), columns);
    };
    add_partial(a.dweight, partials + block * 2 * columns);
    add_partial(a.dbias, partials + (block * 2 + 1) * columns);
  }
}

}  // namespace trainer
