// Norms: a warp has a row. Gradients of their parameters and of biases are sums over rows of each column:
// first within blocks of rows, whose number depends on the shape alone, then over the blocks in order.
#include "cuda/kernels.h"
#include "cuda/vectors.h"

namespace trainer::TRAINER_DEVICE_NAMESPACE {
namespace {

constexpr int kRowWarps = 4;  // rows of a block
constexpr int kWarpColumns = kWarpThreads * kRun;

__device__ __forceinline__ int64_t row_offset(const RowShape& shape, int64_t row) {
  return row / shape.inner * shape.outer_stride + row % shape.inner * shape.columns;
}
__device__ __forceinline__ int64_t row_of_warp() {
  return static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / kWarpThreads;
}
__device__ __forceinline__ int64_t first_column() {
  return static_cast<int64_t>(threadIdx.x % kWarpThreads) * kRun;
}

// x + delta of a run, rounded as it is stored; stores it where `delta` is given and `store` asks for it.
template <class T>
__device__ __forceinline__ void load_sum(float (&values)[kRun], const NormForward& a, int64_t at,
                                         int64_t left, bool vectors, bool store) {
  load_run(values, static_cast<const T*>(a.x.data) + at, left, vectors);
  if (!a.delta.data) return;
  float deltas[kRun];
  load_run(deltas, static_cast<const T*>(a.delta.data) + at, left, vectors);
  TRAINER_UNROLL
  for (int i = 0; i < kRun; ++i) values[i] = to_float(from_float<T>(values[i] + deltas[i]));
  if (store) store_run(static_cast<T*>(a.sum.data) + at, values, left, vectors);
}

template <class T>
__global__ void __launch_bounds__(kRowWarps* kWarpThreads) norm_forward_kernel(NormForward a, bool vectors) {
  const int64_t row = row_of_warp(), columns = a.x_shape.columns;
  if (row >= a.x_shape.outer * a.x_shape.inner) return;
  const int64_t x_at = row_offset(a.x_shape, row), y_at = row_offset(a.y_shape, row);
  const float width = static_cast<float>(columns);
  float values[kRun], weights[kRun], biases[kRun] = {};
  float mean = 0.0f, square = 0.0f;
  const bool centred = a.kind == NormKind::kLayer;
  if (centred) {
    for (int64_t c = first_column(); c < columns; c += kWarpColumns) {
      load_sum<T>(values, a, x_at + c, columns - c, vectors, false);
      TRAINER_UNROLL
      for (int i = 0; i < kRun; ++i) mean += values[i];
    }
    mean = warp_sum(mean) / width;
  }
  for (int64_t c = first_column(); c < columns; c += kWarpColumns) {
    load_sum<T>(values, a, x_at + c, columns - c, vectors, false);
    TRAINER_UNROLL
    for (int i = 0; i < kRun; ++i) {
      const float distance = c + i < columns ? values[i] - mean : 0.0f;
      square = fmaf(distance, distance, square);
    }
  }
  const float reciprocal = 1.0f / sqrtf(warp_sum(square) / width + a.epsilon);
  for (int64_t c = first_column(); c < columns; c += kWarpColumns) {
    const int64_t left = columns - c;
    load_sum<T>(values, a, x_at + c, left, vectors, true);
    load_run(weights, static_cast<const T*>(a.weight.data) + c, left, vectors);
    if (a.bias.data) load_run(biases, static_cast<const T*>(a.bias.data) + c, left, vectors);
    TRAINER_UNROLL
    for (int i = 0; i < kRun; ++i) values[i] = fmaf((values[i] - mean) * reciprocal, weights[i], biases[i]);
    store_run(static_cast<T*>(a.y.data) + y_at + c, values, left, vectors);
  }
  if (threadIdx.x % kWarpThreads == 0) {
    a.reciprocal[row] = reciprocal;
    if (centred) a.mean[row] = mean;
  }
}

// dx may be dy or dresidual: a thread reads a run of all of them before it writes it.
template <class T, class Dy>
__global__ void __launch_bounds__(kRowWarps* kWarpThreads) norm_input_kernel(NormBackward a, bool vectors) {
  const int64_t row = row_of_warp(), columns = a.x_shape.columns;
  if (row >= a.x_shape.outer * a.x_shape.inner) return;
  const T* const x = static_cast<const T*>(a.x.data) + row_offset(a.x_shape, row);
  const Dy* const dy = static_cast<const Dy*>(a.dy.data) + row_offset(a.dy_shape, row);
  const int64_t dx_at = row_offset(a.dx_shape, row);
  const bool centred = a.kind == NormKind::kLayer;
  const float mean = centred ? a.mean[row] : 0.0f, reciprocal = a.reciprocal[row];
  float normalised[kRun], scaled[kRun], weights[kRun], residual[kRun] = {};
  const auto load = [&](int64_t c) {
    const int64_t left = columns - c;
    load_run(normalised, x + c, left, vectors);
    load_run(scaled, dy + c, left, vectors);
    load_run(weights, static_cast<const T*>(a.weight.data) + c, left, vectors);
    TRAINER_UNROLL
    for (int i = 0; i < kRun; ++i) {
      normalised[i] = (normalised[i] - mean) * reciprocal;
      scaled[i] *= weights[i];
    }
  };
  float sum = 0.0f, product = 0.0f;
  for (int64_t c = first_column(); c < columns; c += kWarpColumns) {
    load(c);
    TRAINER_UNROLL
    for (int i = 0; i < kRun; ++i) {
      sum += scaled[i];
      product = fmaf(scaled[i], normalised[i], product);
    }
  }
  const float width = static_cast<float>(columns);
  sum = centred ? warp_sum(sum) / width : 0.0f;
  product = warp_sum(product) / width;
  for (int64_t c = first_column(); c < columns; c += kWarpColumns) {
    const int64_t left = columns - c;
    load(c);
    if (a.dresidual.data)
      load_run(residual, static_cast<const T*>(a.dresidual.data) + dx_at + c, left, vectors);
    TRAINER_UNROLL
    for (int i = 0; i < kRun; ++i) {
      const float slope = scaled[i] - sum - normalised[i] * product;
      scaled[i] = fmaf(slope, reciprocal, residual[i]);
    }
    store_run(static_cast<T*>(a.dx.data) + dx_at + c, scaled, left, vectors);
  }
}

// Sums over rows.

constexpr int kSumWarps = 8;
constexpr int64_t kMostRowBlocks = 128, kLeastBlockRows = 16;

int64_t row_blocks(int64_t rows) {
  const int64_t blocks = divide_up(rows, kLeastBlockRows);
  return blocks < kMostRowBlocks ? blocks : kMostRowBlocks;
}
// Of one array of partial sums, rounded up so that the next one is aligned.
int64_t partial_floats(int64_t rows, int64_t columns) { return (row_blocks(rows) * columns + 3) / 4 * 4; }

// The sums that one thread has of its columns, over the warps of its block to partial[blockIdx.y, columns].
__device__ __forceinline__ void store_partial(SharedSpan<float> sums, const float (&values)[kRun],
                                              float* partial, int64_t columns) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarpThreads,
            lane = thread % kWarpThreads;
  __syncthreads();
  TRAINER_UNROLL
  for (int i = 0; i < kRun; ++i) sums[warp * kWarpColumns + i * kWarpThreads + lane] = values[i];
  __syncthreads();
  // As many columns as threads.
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarpColumns + thread;
  if (column >= columns) return;
  float sum = 0.0f;
  TRAINER_UNROLL
  for (int w = 0; w < kSumWarps; ++w) {
    sum += sums[w * kWarpColumns + thread % kRun * kWarpThreads + thread / kRun];
  }
  partial[static_cast<int64_t>(blockIdx.y) * columns + column] = sum;
}
static_assert(kSumWarps * kWarpThreads == kWarpColumns);

struct ColumnSums {
  const void *x, *dy;  // x null: sums of dy alone
  RowShape x_shape, dy_shape;
  const float *mean, *reciprocal;        // mean may be null
  float *weight_partial, *bias_partial;  // [row blocks, columns]; null: not wanted
};

template <class T, class Dy>
__global__ void __launch_bounds__(kSumWarps* kWarpThreads) column_sums_kernel(ColumnSums a, bool vectors) {
  SharedArena arena;
  const SharedSpan<float> sums = arena.take<float>(kSumWarps * kWarpColumns);
  const int64_t rows = a.dy_shape.outer * a.dy_shape.inner, columns = a.dy_shape.columns;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarpColumns + first_column(),
                left = columns - column;
  const int64_t begin = rows * blockIdx.y / gridDim.y, end = rows * (blockIdx.y + 1) / gridDim.y;
  float weights[kRun] = {}, biases[kRun] = {}, normalised[kRun], dy[kRun];
  for (int64_t row = begin + threadIdx.x / kWarpThreads; row < end && left > 0; row += kSumWarps) {
    load_run(dy, static_cast<const Dy*>(a.dy) + row_offset(a.dy_shape, row) + column, left, vectors);
    TRAINER_UNROLL
    for (int i = 0; i < kRun; ++i) biases[i] += dy[i];
    if (!a.weight_partial) continue;
    const float mean = a.mean ? a.mean[row] : 0.0f, reciprocal = a.reciprocal[row];
    load_run(normalised, static_cast<const T*>(a.x) + row_offset(a.x_shape, row) + column, left, vectors);
    TRAINER_UNROLL
    for (int i = 0; i < kRun; ++i) weights[i] = fmaf(dy[i], (normalised[i] - mean) * reciprocal, weights[i]);
  }
  if (a.weight_partial) store_partial(sums, weights, a.weight_partial, columns);
  if (a.bias_partial) store_partial(sums, biases, a.bias_partial, columns);
}

__global__ void __launch_bounds__(kPlainBlock)
    add_partials_kernel(float* total, const float* partial, int64_t blocks, int64_t columns) {
  const int64_t column = thread_of_grid();
  if (column >= columns) return;
  float sum = 0.0f;
  for (int64_t block = 0; block < blocks; ++block) sum += partial[block * columns + column];
  total[column] += sum;
}

// weight and bias += the sums; null: not wanted.
template <class T, class Dy>
void add_column_sums(float* weight, float* bias, ColumnSums a, std::span<std::byte> workspace,
                     Stream stream) {
  const int64_t rows = a.dy_shape.outer * a.dy_shape.inner, columns = a.dy_shape.columns,
                blocks = row_blocks(rows);
  if (rows == 0 || columns == 0) return;
  auto* partial = reinterpret_cast<float*>(workspace.data());
  if (weight) {
    a.weight_partial = partial;
    partial += partial_floats(rows, columns);
  }
  if (bias) a.bias_partial = partial;
  const bool vectors =
      fit_vectors({{{a.dy, sizeof(Dy) == 4 ? DType::kF32 : DType::kBF16}, a.dy_shape.outer_stride},
                   {{a.dy, sizeof(Dy) == 4 ? DType::kF32 : DType::kBF16}, columns},
                   {{a.x, sizeof(T) == 4 ? DType::kF32 : DType::kBF16}, a.x_shape.outer_stride},
                   {{a.x, sizeof(T) == 4 ? DType::kF32 : DType::kBF16}, columns}});
  const dim3 grid(static_cast<unsigned>(divide_up(columns, kWarpColumns)), static_cast<unsigned>(blocks));
  launch(column_sums_kernel<T, Dy>, grid, kSumWarps * kWarpThreads,
         shared_bytes<float>(kSumWarps * kWarpColumns), stream, a, vectors);
  if (weight) launch_over(add_partials_kernel, columns, stream, weight, a.weight_partial, blocks, columns);
  if (bias) launch_over(add_partials_kernel, columns, stream, bias, a.bias_partial, blocks, columns);
}

bool fits(ConstRef data, const RowShape& shape) {
  return fit_vectors({{data, shape.outer_stride}, {data, shape.columns}});
}

}  // namespace

void norm_forward(const NormForward& a, Stream stream) {
  const int64_t rows = a.x_shape.outer * a.x_shape.inner;
  if (rows == 0) return;
  const bool vectors = fits(a.x, a.x_shape) && fits(a.delta, a.x_shape) && fits(a.sum, a.x_shape) &&
                       fits(a.y, a.y_shape) && fit_vectors({{a.weight}, {a.bias}});
  with_element(a.x.dtype, [&]<class T>(T) {
    launch(norm_forward_kernel<T>, divide_up(rows, kRowWarps), kRowWarps * kWarpThreads, 0, stream, a,
           vectors);
  });
}

size_t norm_backward_workspace(int64_t rows, int64_t columns) {
  return static_cast<size_t>(2 * partial_floats(rows, columns)) * sizeof(float);
}

void norm_backward(const NormBackward& a, std::span<std::byte> workspace, Stream stream) {
  const int64_t rows = a.x_shape.outer * a.x_shape.inner;
  if (rows == 0) return;
  const bool vectors = fits(a.x, a.x_shape) && fits(a.dy, a.dy_shape) && fits(a.dx, a.dx_shape) &&
                       fits(a.dresidual, a.dx_shape) && fit_vectors({{a.weight}});
  const auto run = [&]<class T, class Dy>(T, Dy) {
    // First the parameters' gradients: dx may overwrite dy.
    if (a.dweight || a.dbias) {
      add_column_sums<T, Dy>(a.dweight, a.dbias,
                             {a.x.data, a.dy.data, a.x_shape, a.dy_shape,
                              a.kind == NormKind::kLayer ? a.mean : nullptr, a.reciprocal, nullptr, nullptr},
                             workspace, stream);
    }
    launch(norm_input_kernel<T, Dy>, divide_up(rows, kRowWarps), kRowWarps * kWarpThreads, 0, stream, a,
           vectors);
  };
  with_element(a.x.dtype, [&]<class T>(T x) {
    if (a.dy.dtype == DType::kF32) {
      run(x, float());
    } else {
      run(x, Bf16());
    }
  });
}

size_t bias_backward_workspace(int64_t m, int64_t n) {
  return static_cast<size_t>(partial_floats(m, n)) * sizeof(float);
}

void bias_backward(float* db, ConstRef dy, int64_t m, int64_t n, std::span<std::byte> workspace,
                   Stream stream) {
  const RowShape shape{m, 1, n, n};
  with_element(dy.dtype, [&]<class T>(T) {
    add_column_sums<T, T>(nullptr, db, {nullptr, dy.data, {}, shape, nullptr, nullptr, nullptr, nullptr},
                          workspace, stream);
  });
}

}  // namespace trainer::TRAINER_DEVICE_NAMESPACE
