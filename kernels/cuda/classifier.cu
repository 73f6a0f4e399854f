#include "base/label.h"
#include "cuda/kernels.h"
#include "cuda/vectors.h"

namespace trainer::TRAINER_DEVICE_NAMESPACE {
namespace {

constexpr int kSoftmaxWarps = 8, kSoftmaxThreads = kSoftmaxWarps * kWarpThreads;
constexpr int64_t kSoftmaxStep = kSoftmaxThreads * kRun;

// The largest of some logits, and the sum of e^(logit - largest) over them.
struct SoftmaxSum {
  float largest;
  double total;
};
__device__ __forceinline__ SoftmaxSum join(const SoftmaxSum& a, const SoftmaxSum& b) {
  if (b.total == 0.0) return a;
  if (a.total == 0.0) return b;
  const float largest = fmaxf(a.largest, b.largest);
  return {largest, a.total * static_cast<double>(expf(a.largest - largest)) +
                       b.total * static_cast<double>(expf(b.largest - largest))};
}

// Of a row of logits, on all threads of the block.
struct RowSums {
  SharedSpan<float> warp_largest;
  SharedSpan<double> warp_total;
};
__device__ __forceinline__ RowSums take_row_sums(SharedArena& arena) {
  const SharedSpan<float> largest = arena.take<float>(kSoftmaxWarps);
  return {largest, arena.take<double>(kSoftmaxWarps)};
}
constexpr size_t kRowSumBytes = shared_bytes<float>(kSoftmaxWarps) + shared_bytes<double>(kSoftmaxWarps);

__device__ __forceinline__ SoftmaxSum sum_row(const RowSums& shared, const float* row, int64_t vocabulary,
                                              bool vectors) {
  const int thread = static_cast<int>(threadIdx.x);
  float values[kRun], largest = -INFINITY, total = 0.0f;
  for (int64_t c = thread * kRun; c < vocabulary; c += kSoftmaxStep) {
    load_run(values, row + c, vocabulary - c, vectors);
    float top = largest;
    TRAINER_UNROLL
    for (int i = 0; i < kRun; ++i) top = c + i < vocabulary ? fmaxf(top, values[i]) : top;
    float sum = 0.0f;
    TRAINER_UNROLL
    for (int i = 0; i < kRun; ++i) sum += c + i < vocabulary ? expf(values[i] - top) : 0.0f;
    total = c == thread * kRun ? sum : fmaf(total, expf(largest - top), sum);
    largest = top;
  }
  SoftmaxSum own{largest, static_cast<double>(total)};
  for (int bits = kWarpThreads / 2; bits > 0; bits /= 2) {
    const SoftmaxSum other{__shfl_down_sync(0xFFFFFFFFu, own.largest, bits),
                           __shfl_down_sync(0xFFFFFFFFu, own.total, bits)};
    own = join(own, other);
  }
  if (thread % kWarpThreads == 0) {
    shared.warp_largest[thread / kWarpThreads] = own.largest;
    shared.warp_total[thread / kWarpThreads] = own.total;
  }
  __syncthreads();
  SoftmaxSum all{shared.warp_largest[0], shared.warp_total[0]};
  for (int warp = 1; warp < kSoftmaxWarps; ++warp)
    all = join(all, {shared.warp_largest[warp], shared.warp_total[warp]});
  return all;
}

// `label`: where in the row; outside of it: in another rank's. A thread writes what it alone reads, so slopes
// may take the place of the logits.
template <class Slope>
__device__ __forceinline__ void store_slopes(Slope* slopes, const float* row, int64_t vocabulary,
                                             int64_t label, const SoftmaxSum& all, double loss,
                                             bool vectors) {
  const float share = static_cast<float>(1.0 / all.total);
  float values[kRun];
  for (int64_t c = static_cast<int>(threadIdx.x) * kRun; c < vocabulary; c += kSoftmaxStep) {
    load_run(values, row + c, vocabulary - c, vectors);
    TRAINER_UNROLL
    for (int i = 0; i < kRun; ++i) {
      values[i] = c + i == label ? expm1f(static_cast<float>(-loss)) : expf(values[i] - all.largest) * share;
    }
    store_run(slopes + c, values, vocabulary - c, vectors);
  }
}

// A token without a valid label.
template <class Slope>
__device__ __forceinline__ void store_no_loss(double* loss, Slope* slopes, int64_t vocabulary, bool vectors) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) *loss = 0.0;
  if (!slopes) return;
  const float values[kRun] = {};
  for (int64_t c = thread * kRun; c < vocabulary; c += kSoftmaxStep)
    store_run(slopes + c, values, vocabulary - c, vectors);
}

// In these kernels a block has a token.
template <class Slope>
__global__ void __launch_bounds__(kSoftmaxThreads)
    softmax_kernel(double* losses, Slope* slopes, const float* logits, const int32_t* labels,
                   int64_t vocabulary, bool vectors) {
  SharedArena arena;
  const RowSums shared = take_row_sums(arena);
  const int64_t token = blockIdx.x;
  const float* const row = logits + token * vocabulary;
  Slope* const own_slopes = slopes ? slopes + token * vocabulary : nullptr;
  const int32_t label = labels[token];
  if (label < 0 || label >= vocabulary) return store_no_loss(losses + token, own_slopes, vocabulary, vectors);
  const SoftmaxSum all = sum_row(shared, row, vocabulary, vectors);
  const double loss = log(all.total) + (static_cast<double>(all.largest) - static_cast<double>(row[label]));
  // All threads have read the label's logit before one of them may overwrite it.
  __syncthreads();
  if (threadIdx.x == 0) losses[token] = loss;
  if (own_slopes) store_slopes(own_slopes, row, vocabulary, label, all, loss, vectors);
}

__global__ void __launch_bounds__(kSoftmaxThreads)
    softmax_parts_kernel(SoftmaxPart* parts, const float* logits, const int32_t* labels, OwnWords own,
                         bool vectors) {
  SharedArena arena;
  const RowSums shared = take_row_sums(arena);
  const int64_t token = blockIdx.x;
  const int32_t label = labels[token];
  if (label < 0 || label >= own.words) {
    if (threadIdx.x == 0) parts[token] = {};
    return;
  }
  const float* const row = logits + token * own.vocabulary;
  const SoftmaxSum sum = sum_row(shared, row, own.vocabulary, vectors);
  if (threadIdx.x > 0) return;
  const int64_t word = label - own.first;
  const bool here = word >= 0 && word < own.vocabulary;
  parts[token] = {static_cast<double>(sum.largest), sum.total, here ? static_cast<double>(row[word]) : 0.0};
}

template <class Slope>
__global__ void __launch_bounds__(kSoftmaxThreads)
    slopes_of_parts_kernel(double* losses, Slope* slopes, const float* logits, const int32_t* labels,
                           OwnWords own, const SoftmaxPart* parts, int ranks, bool vectors) {
  const int64_t token = blockIdx.x;
  Slope* const own_slopes = slopes ? slopes + token * own.vocabulary : nullptr;
  const int32_t label = labels[token];
  if (label < 0 || label >= own.words)
    return store_no_loss(losses + token, own_slopes, own.vocabulary, vectors);
  SoftmaxSum all{0.0f, 0.0};
  double target = 0.0;
  for (int rank = 0; rank < ranks; ++rank) {
    const SoftmaxPart& part = parts[rank * static_cast<int64_t>(gridDim.x) + token];
    all = join(all, {static_cast<float>(part.largest), part.total});
    target += part.target;
  }
  const double loss = log(all.total) + (static_cast<double>(all.largest) - target);
  if (threadIdx.x == 0) losses[token] = loss;
  if (own_slopes)
    store_slopes(own_slopes, logits + token * own.vocabulary, own.vocabulary, label - own.first, all, loss,
                 vectors);
}

constexpr int kLossThreads = 256;

// One thread adds, in the order of the tokens; the others bring it what it adds.
__global__ void __launch_bounds__(kLossThreads)
    add_losses_kernel(ClassifierSums* sums, float* token_losses, const double* losses, const int32_t* labels,
                      int64_t first, int64_t tokens, int64_t words) {
  SharedArena arena;
  const SharedSpan<double> some = arena.take<double>(kLossThreads);
  const SharedSpan<int> kinds = arena.take<int>(kLossThreads);  // 0: ignored, 1: valid, 2: wrong
  const int thread = static_cast<int>(threadIdx.x);
  for (int64_t begin = 0; begin < tokens; begin += kLossThreads) {
    const int64_t token = begin + thread;
    if (token < tokens) {
      const int32_t label = labels[token];
      some[thread] = losses[token];
      kinds[thread] = label == kIgnoredLabel ? 0 : label >= 0 && label < words ? 1 : 2;
      if (token_losses) token_losses[first + token] = static_cast<float>(losses[token]);
    }
    __syncthreads();
    if (thread == 0) {
      ClassifierSums all = *sums;
      for (int i = 0; i < kLossThreads && begin + i < tokens; ++i) {
        const int kind = kinds[i];
        all.loss_sum += some[i];
        all.valid_tokens += kind == 1;
        if (kind == 2 && all.wrong_token < 0) all.wrong_token = first + begin + i;
      }
      *sums = all;
    }
    __syncthreads();
  }
}

}  // namespace

void softmax_slopes(double* losses, Ref slopes, const float* logits, const int32_t* labels, int64_t tokens,
                    int64_t vocabulary, Stream stream) {
  if (tokens == 0) return;
  const bool vectors = fit_vectors({{ref(logits), vocabulary}, {slopes, vocabulary}});
  with_element(slopes.dtype, [&]<class T>(T) {
    launch(softmax_kernel<T>, tokens, kSoftmaxThreads, kRowSumBytes, stream, losses, elements<T>(slopes),
           logits, labels, vocabulary, vectors);
  });
}

void softmax_parts(SoftmaxPart* parts, const float* logits, const int32_t* labels, int64_t tokens,
                   const OwnWords& own, Stream stream) {
  if (tokens == 0) return;
  launch(softmax_parts_kernel, tokens, kSoftmaxThreads, kRowSumBytes, stream, parts, logits, labels, own,
         fit_vectors({{ref(logits), own.vocabulary}}));
}

void softmax_slopes_of_parts(double* losses, Ref slopes, const float* logits, const int32_t* labels,
                             int64_t tokens, const OwnWords& own, const SoftmaxPart* parts, int ranks,
                             Stream stream) {
  if (tokens == 0) return;
  const bool vectors = fit_vectors({{ref(logits), own.vocabulary}, {slopes, own.vocabulary}});
  with_element(slopes.dtype, [&]<class T>(T) {
    launch(slopes_of_parts_kernel<T>, tokens, kSoftmaxThreads, 0, stream, losses, elements<T>(slopes), logits,
           labels, own, parts, ranks, vectors);
  });
}

void add_losses(ClassifierSums* sums, float* token_losses, const double* losses, const int32_t* labels,
                int64_t first, int64_t tokens, int64_t words, Stream stream) {
  if (tokens == 0) return;
  launch(add_losses_kernel, 1, kLossThreads,
         shared_bytes<double>(kLossThreads) + shared_bytes<int>(kLossThreads), stream, sums, token_losses,
         losses, labels, first, tokens, words);
}

}  // namespace trainer::TRAINER_DEVICE_NAMESPACE
