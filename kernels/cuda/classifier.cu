#include "base/label.h"
#include "cuda/kernels.h"
#include "cuda/vectors.h"

namespace trainer::TRAINER_DEVICE_NAMESPACE {
namespace {

constexpr int kSoftmaxWarps = 8, kSoftmaxThreads = kSoftmaxWarps * kWarpThreads;

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

// A block has a token. Logits and slopes may be the same memory: a thread writes what it alone has read.
template <class Slope>
__global__ void __launch_bounds__(kSoftmaxThreads)
    softmax_kernel(double* losses, Slope* slopes, const float* logits, const int32_t* labels,
                   int64_t vocabulary, bool vectors) {
  SharedArena arena;
  const SharedSpan<float> warp_largest = arena.take<float>(kSoftmaxWarps);
  const SharedSpan<double> warp_total = arena.take<double>(kSoftmaxWarps);
  const int64_t token = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  const float* const row = logits + token * vocabulary;
  const int32_t label = labels[token];
  const bool valid = label >= 0 && label < vocabulary;
  float values[kRun];
  constexpr int64_t kStep = kSoftmaxThreads * kRun;
  if (!valid) {
    if (thread == 0) losses[token] = 0.0;
    if (!slopes) return;
    TRAINER_UNROLL
    for (int i = 0; i < kRun; ++i) values[i] = 0.0f;
    for (int64_t c = thread * kRun; c < vocabulary; c += kStep) {
      store_run(slopes + token * vocabulary + c, values, vocabulary - c, vectors);
    }
    return;
  }

  float largest = -INFINITY, total = 0.0f;
  for (int64_t c = thread * kRun; c < vocabulary; c += kStep) {
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
    warp_largest[thread / kWarpThreads] = own.largest;
    warp_total[thread / kWarpThreads] = own.total;
  }
  __syncthreads();
  SoftmaxSum all{warp_largest[0], warp_total[0]};
  for (int warp = 1; warp < kSoftmaxWarps; ++warp) all = join(all, {warp_largest[warp], warp_total[warp]});
  const double loss = log(all.total) + (static_cast<double>(all.largest) - static_cast<double>(row[label]));
  // All threads have read the label's logit before one of them may overwrite it.
  __syncthreads();
  if (thread == 0) losses[token] = loss;
  if (!slopes) return;
  const float share = static_cast<float>(1.0 / all.total);
  for (int64_t c = thread * kRun; c < vocabulary; c += kStep) {
    load_run(values, row + c, vocabulary - c, vectors);
    TRAINER_UNROLL
    for (int i = 0; i < kRun; ++i) {
      values[i] = c + i == label ? expm1f(static_cast<float>(-loss)) : expf(values[i] - all.largest) * share;
    }
    store_run(slopes + token * vocabulary + c, values, vocabulary - c, vectors);
  }
}

constexpr int kLossThreads = 256;

// One thread adds, in the order of the tokens; the others bring it what it adds.
__global__ void __launch_bounds__(kLossThreads)
    add_losses_kernel(ClassifierSums* sums, float* token_losses, const double* losses, const int32_t* labels,
                      int64_t first, int64_t tokens, int64_t vocabulary) {
  SharedArena arena;
  const SharedSpan<double> some = arena.take<double>(kLossThreads);
  const SharedSpan<int> kinds = arena.take<int>(kLossThreads);  // 0: ignored, 1: valid, 2: wrong
  const int thread = static_cast<int>(threadIdx.x);
  for (int64_t begin = 0; begin < tokens; begin += kLossThreads) {
    const int64_t token = begin + thread;
    if (token < tokens) {
      const int32_t label = labels[token];
      some[thread] = losses[token];
      kinds[thread] = label == kIgnoredLabel ? 0 : label >= 0 && label < vocabulary ? 1 : 2;
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
    launch(softmax_kernel<T>, tokens, kSoftmaxThreads,
           shared_bytes<float>(kSoftmaxWarps) + shared_bytes<double>(kSoftmaxWarps), stream, losses,
           elements<T>(slopes), logits, labels, vocabulary, vectors);
  });
}

void add_losses(ClassifierSums* sums, float* token_losses, const double* losses, const int32_t* labels,
                int64_t first, int64_t tokens, int64_t vocabulary, Stream stream) {
  if (tokens == 0) return;
  launch(add_losses_kernel, 1, kLossThreads,
         shared_bytes<double>(kLossThreads) + shared_bytes<int>(kLossThreads), stream, sums, token_losses,
         losses, labels, first, tokens, vocabulary);
}

}  // namespace trainer::TRAINER_DEVICE_NAMESPACE
