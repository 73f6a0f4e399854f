#include <cmath>

#include "cuda/kernels.h"
#include "cuda/vectors.h"

namespace trainer::TRAINER_DEVICE_NAMESPACE {
namespace {

// What an update needs beside the element, worked out in double on the host, as the host backend does.
struct Factors {
  float gradient_scale, beta1, one_minus_beta1, beta2, one_minus_beta2, step_size, root_correction, epsilon,
      decay;
};
Factors factors_of(const AdamW& a) {
  const double beta1 = a.beta1, beta2 = a.beta2, step = static_cast<double>(a.step);
  return {a.gradient_scale,
          a.beta1,
          static_cast<float>(1.0 - beta1),
          a.beta2,
          static_cast<float>(1.0 - beta2),
          static_cast<float>(a.learning_rate / (1.0 - std::pow(beta1, step))),
          static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(beta2, step))),
          a.epsilon,
          static_cast<float>(1.0 - static_cast<double>(a.learning_rate) * a.weight_decay)};
}

__device__ __forceinline__ void update(const Factors& f, float unscaled, float& moment1, float& moment2,
                                       float& master) {
  const float gradient = unscaled * f.gradient_scale;
  moment1 = fmaf(moment1, f.beta1, gradient * f.one_minus_beta1);
  moment2 = fmaf(moment2, f.beta2, gradient * gradient * f.one_minus_beta2);
  const float denominator = fmaf(sqrtf(moment2), f.root_correction, f.epsilon);
  master = master * f.decay - f.step_size * moment1 / denominator;
}

// `working` null: none.
template <class T>
__global__ void __launch_bounds__(kPlainBlock)
    adamw_kernel(AdamW a, T* working, Factors factors, bool vectors) {
  const int64_t first = thread_of_grid() * kRun, left = a.count - first;
  if (left <= 0) return;
  float gradient[kRun], moment1[kRun], moment2[kRun], master[kRun];
  load_run(gradient, a.gradient + first, left, vectors);
  load_run(moment1, a.moment1 + first, left, vectors);
  load_run(moment2, a.moment2 + first, left, vectors);
  load_run(master, a.master + first, left, vectors);
  TRAINER_UNROLL
  for (int i = 0; i < kRun; ++i) update(factors, gradient[i], moment1[i], moment2[i], master[i]);
  store_run(a.moment1 + first, moment1, left, vectors);
  store_run(a.moment2 + first, moment2, left, vectors);
  store_run(a.master + first, master, left, vectors);
  if (working) store_run(working + first, master, left, vectors);
}

constexpr int kSquareWarps = 8, kSquareThreads = kSquareWarps * kWarpThreads;

__global__ void __launch_bounds__(kSquareThreads)
    block_squares_kernel(double* squares, const float* x, int64_t count, bool vectors) {
  SharedArena arena;
  const SharedSpan<double> warp_sums = arena.take<double>(kSquareWarps);
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * KernelSet::kNormBlock;
  const int64_t end = begin + KernelSet::kNormBlock < count ? begin + KernelSet::kNormBlock : count;
  const int thread = static_cast<int>(threadIdx.x);
  double sum = 0.0;
  float values[kRun];
  for (int64_t first = begin + thread * kRun; first < end; first += kSquareThreads * kRun) {
    load_run(values, x + first, end - first, vectors);
    TRAINER_UNROLL
    for (int i = 0; i < kRun; ++i) sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  }
  sum = warp_sum(sum);
  if (thread % kWarpThreads == 0) warp_sums[thread / kWarpThreads] = sum;
  __syncthreads();
  if (thread != 0) return;
  for (int warp = 1; warp < kSquareWarps; ++warp) sum += static_cast<double>(warp_sums[warp]);
  squares[blockIdx.x] = sum;
}

// Numbers of 8 bits: a power of ten whose exponent is told by leading zeros, and as many steps within its
// decade as the bits that are left can count. Ascending.
struct Codebook {
  float value[256];
};
constexpr Codebook make_codebook(CodeKind kind) {
  constexpr double kPowers[] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1e0};
  const bool with_sign = kind == CodeKind::kSigned;
  const int zero = with_sign ? 127 : 0;
  Codebook book{};
  int next = zero + 1, steps = with_sign ? 1 : 2;
  for (const double power : kPowers) {
    for (int step = 0; step < steps; ++step) {
      const auto value = static_cast<float>(power * (0.1 + 0.9 * (step + 0.5) / steps));
      if (with_sign) book.value[2 * zero - next] = -value;
      book.value[next++] = value;
    }
    steps *= 2;
  }
  book.value[zero] = 0.0f;
  book.value[next] = 1.0f;
  return book;
}
constexpr Codebook kSignedBook = make_codebook(CodeKind::kSigned),
                   kUnsignedBook = make_codebook(CodeKind::kUnsigned);
static_assert(kSignedBook.value[255] == 1.0f && kSignedBook.value[127] == 0.0f &&
              kSignedBook.value[0] < -0.99f);
static_assert(kUnsignedBook.value[255] == 1.0f && kUnsignedBook.value[1] > 0.0f &&
              kUnsignedBook.value[254] > 0.99f);
__constant__ const Codebook kSignedCodes = kSignedBook, kUnsignedCodes = kUnsignedBook;

// A block of threads has a block of codes; each thread an element.
constexpr int kCodeThreads = static_cast<int>(kCodeBlock), kCodeWarps = kCodeThreads / kWarpThreads;

__device__ __forceinline__ SharedSpan<float> take_codes(SharedArena& arena, CodeKind kind) {
  const SharedSpan<float> codes = arena.take<float>(256);
  const int thread = static_cast<int>(threadIdx.x);
  codes[thread] = kind == CodeKind::kSigned ? kSignedCodes.value[thread] : kUnsignedCodes.value[thread];
  return codes;
}

// The largest magnitude over the block; every thread gets it.
__device__ __forceinline__ float block_largest(SharedSpan<float> warp_largest, float value) {
  const int thread = static_cast<int>(threadIdx.x);
  const float largest = warp_max(fabsf(value));
  if (thread % kWarpThreads == 0) warp_largest[thread / kWarpThreads] = largest;
  __syncthreads();
  float all = 0.0f;
  TRAINER_UNROLL
  for (int warp = 0; warp < kCodeWarps; ++warp) all = fmaxf(all, warp_largest[warp]);
  return all;
}

__device__ __forceinline__ uint8_t nearest_code(SharedSpan<float> codes, float value, float scale,
                                                CodeKind kind) {
  if (scale == 0.0f) return kind == CodeKind::kSigned ? 127 : 0;
  const float part = value / scale;
  int low = 0, high = 255;
  while (low < high) {
    const int middle = (low + high) / 2;
    const float below = codes[middle], above = codes[middle + 1];
    if (part > 0.5f * (below + above)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (kind == CodeKind::kUnsigned && low == 0 && value > 0.0f) low = 1;
  return static_cast<uint8_t>(low);
}

__global__ void __launch_bounds__(kCodeThreads)
    quantise_kernel(uint8_t* codes, float* scales, const float* x, int64_t count, CodeKind kind) {
  SharedArena arena;
  const SharedSpan<float> book = take_codes(arena, kind), warp_largest = arena.take<float>(kCodeWarps);
  const int64_t i = thread_of_grid();
  const float value = i < count ? x[i] : 0.0f;
  const float scale = block_largest(warp_largest, value);
  if (i < count) codes[i] = nearest_code(book, value, scale, kind);
  if (threadIdx.x == 0) scales[blockIdx.x] = scale;
}

__global__ void __launch_bounds__(kCodeThreads)
    dequantise_kernel(float* x, const uint8_t* codes, const float* scales, int64_t count, CodeKind kind) {
  SharedArena arena;
  const SharedSpan<float> book = take_codes(arena, kind);
  __syncthreads();
  const int64_t i = thread_of_grid();
  if (i < count) x[i] = static_cast<float>(book[codes[i]]) * scales[blockIdx.x];
}

template <class T>
__global__ void __launch_bounds__(kCodeThreads) adamw_8bit_kernel(AdamW8Bit a, T* working, Factors factors) {
  SharedArena arena;
  const SharedSpan<float> book1 = take_codes(arena, CodeKind::kSigned),
                          largest1 = arena.take<float>(kCodeWarps);
  const SharedSpan<float> book2 = take_codes(arena, CodeKind::kUnsigned),
                          largest2 = arena.take<float>(kCodeWarps);
  __syncthreads();
  const int64_t i = thread_of_grid();
  const bool inside = i < a.plain.count;
  float moment1 = 0.0f, moment2 = 0.0f;
  if (inside) {
    moment1 = static_cast<float>(book1[a.codes1[i]]) * a.scales1[blockIdx.x];
    moment2 = static_cast<float>(book2[a.codes2[i]]) * a.scales2[blockIdx.x];
    float master = a.plain.master[i];
    update(factors, a.plain.gradient[i], moment1, moment2, master);
    a.plain.master[i] = master;
    if (working) working[i] = from_float<T>(master);
  }
  // Every thread has read the old scales when all have met here.
  const float scale1 = block_largest(largest1, moment1), scale2 = block_largest(largest2, moment2);
  if (inside) {
    a.codes1[i] = nearest_code(book1, moment1, scale1, CodeKind::kSigned);
    a.codes2[i] = nearest_code(book2, moment2, scale2, CodeKind::kUnsigned);
  }
  if (threadIdx.x == 0) {
    a.scales1[blockIdx.x] = scale1;
    a.scales2[blockIdx.x] = scale2;
  }
}

constexpr size_t kBookBytes = shared_bytes<float>(256), kLargestBytes = shared_bytes<float>(kCodeWarps);

// The copy that an update refreshes, if it is not the master itself.
template <class T>
T* working_copy(const AdamW& a) {
  return a.working.data == a.master ? nullptr : elements<T>(a.working);
}

}  // namespace

void adamw(const AdamW& a, Stream stream) {
  const bool vectors =
      fit_vectors({{ref(a.master)}, {ref(a.moment1)}, {ref(a.moment2)}, {ref(a.gradient)}, {a.working}});
  with_element(a.working.dtype, [&]<class T>(T) {
    launch_over(adamw_kernel<T>, divide_up(a.count, kRun), stream, a, working_copy<T>(a), factors_of(a),
                vectors);
  });
}

void block_squares(double* squares, const float* x, int64_t count, Stream stream) {
  if (count == 0) return;
  launch(block_squares_kernel, divide_up(count, KernelSet::kNormBlock), kSquareThreads,
         shared_bytes<double>(kSquareWarps), stream, squares, x, count, fit_vectors({{ref(x)}}));
}

void quantise(uint8_t* codes, float* scales, const float* x, int64_t count, CodeKind kind, Stream stream) {
  if (count == 0) return;
  launch(quantise_kernel, divide_up(count, kCodeBlock), kCodeThreads, kBookBytes + kLargestBytes, stream,
         codes, scales, x, count, kind);
}

void dequantise(float* x, const uint8_t* codes, const float* scales, int64_t count, CodeKind kind,
                Stream stream) {
  if (count == 0) return;
  launch(dequantise_kernel, divide_up(count, kCodeBlock), kCodeThreads, kBookBytes, stream, x, codes, scales,
         count, kind);
}

float code_value(uint8_t code, CodeKind kind) {
  return (kind == CodeKind::kSigned ? kSignedBook : kUnsignedBook).value[code];
}

void adamw_8bit(const AdamW8Bit& a, Stream stream) {
  if (a.plain.count == 0) return;
  with_element(a.plain.working.dtype, [&]<class T>(T) {
    launch(adamw_8bit_kernel<T>, divide_up(a.plain.count, kCodeBlock), kCodeThreads,
           2 * (kBookBytes + kLargestBytes), stream, a, working_copy<T>(a.plain), factors_of(a.plain));
  });
}

}  // namespace trainer::TRAINER_DEVICE_NAMESPACE
