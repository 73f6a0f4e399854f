#include "cuda/kernels.h"
#include "cuda/vectors.h"

namespace trainer::TRAINER_DEVICE_NAMESPACE {
namespace {

template <class To, class From>
__global__ void __launch_bounds__(kPlainBlock)
    embedding_forward_kernel(To* y, const int32_t* tokens, const From* table, const int32_t* positions,
                             const From* position_table, int64_t count, int64_t hidden, bool vectors) {
  const int64_t runs = divide_up(hidden, kRun), index = thread_of_grid();
  const int64_t t = index / runs, column = index % runs * kRun, left = hidden - column;
  if (t >= count) return;
  float values[kRun] = {}, places[kRun];
  if (tokens[t] >= 0) load_run(values, table + tokens[t] * hidden + column, left, vectors);
  if (position_table) {
    load_run(places, position_table + positions[t] * hidden + column, left, vectors);
    TRAINER_UNROLL
    for (int i = 0; i < kRun; ++i) values[i] += places[i];
  }
  store_run(y + t * hidden + column, values, left, vectors);
}

constexpr int kTokenBlock = 128;  // threads, and tokens looked at together

// Which of kTokenBlock tokens from `first` on are `token`, as bits in `matches`; true if any is. All threads
// of the block call it and get the same answer. What `matches` held before is lost.
__device__ __forceinline__ bool find_token(SharedSpan<unsigned> matches, const int32_t* tokens, int64_t first,
                                           int64_t end, int32_t token) {
  constexpr int kWords = kTokenBlock / kWarpThreads;
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();
  const unsigned word = __ballot_sync(0xFFFFFFFFu, first + thread < end && tokens[first + thread] == token);
  if (thread % kWarpThreads == 0) matches[thread / kWarpThreads] = word;
  __syncthreads();
  unsigned any = 0;
  TRAINER_UNROLL
  for (int i = 0; i < kWords; ++i) any |= static_cast<unsigned>(matches[i]);
  return any != 0;
}

// The block of a token's first occurrence adds all its rows, in their order; the other blocks find that they
// are not it.
template <class T>
__global__ void __launch_bounds__(kTokenBlock)
    embedding_backward_kernel(float* dtable, const int32_t* tokens, const T* dy, int64_t count,
                              int64_t hidden, bool vectors) {
  constexpr int kWords = kTokenBlock / kWarpThreads;
  SharedArena arena;
  const SharedSpan<unsigned> matches = arena.take<unsigned>(kWords);
  const int64_t own = blockIdx.x;
  const int32_t token = tokens[own];
  if (token < 0) return;
  for (int64_t first = 0; first < own; first += kTokenBlock) {
    if (find_token(matches, tokens, first, own, token)) return;
  }
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kTokenBlock + threadIdx.x) * kRun,
                left = hidden - column;
  float sums[kRun] = {}, values[kRun];
  float* const row = dtable + token * hidden + column;
  if (left > 0) load_run(sums, row, left, vectors);
  for (int64_t first = own; first < count; first += kTokenBlock) {
    if (!find_token(matches, tokens, first, count, token) || left <= 0) continue;
    for (int word = 0; word < kWords; ++word) {
      unsigned rest = matches[word];
      for (int bit = 0; rest != 0; ++bit, rest >>= 1) {
        if ((rest & 1) == 0) continue;
        load_run(values, dy + (first + word * kWarpThreads + bit) * hidden + column, left, vectors);
        TRAINER_UNROLL
        for (int i = 0; i < kRun; ++i) sums[i] += values[i];
      }
    }
  }
  if (left > 0) store_run(row, sums, left, vectors);
}

__global__ void __launch_bounds__(kPlainBlock)
    first_of_document_kernel(int32_t* document_first, int64_t positions, const int32_t* starts,
                             int64_t documents) {
  const int64_t position = thread_of_grid();
  if (position >= positions) return;
  int64_t low = 0, high = documents;  // the document is in [low, high)
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (starts[middle] <= position ? low : high) = middle;
  }
  document_first[position] = starts[low];
}

}  // namespace

void embedding_forward(Ref y, const int32_t* tokens, ConstRef table, const int32_t* positions,
                       ConstRef position_table, int64_t count, int64_t hidden, Stream stream) {
  const bool vectors = fit_vectors({{y, hidden}, {table, hidden}, {position_table, hidden}});
  with_element(y.dtype, [&]<class To>(To) {
    with_element(table.dtype, [&]<class From>(From) {
      launch_over(embedding_forward_kernel<To, From>, count * divide_up(hidden, kRun), stream,
                  elements<To>(y), tokens, elements<From>(table), positions, elements<From>(position_table),
                  count, hidden, vectors);
    });
  });
}

void embedding_backward(float* dtable, const int32_t* tokens, float* dposition, const int32_t* positions,
                        ConstRef dy, int64_t count, int64_t hidden, Stream stream) {
  if (count == 0) return;
  const dim3 grid(static_cast<unsigned>(count), static_cast<unsigned>(divide_up(hidden, kTokenBlock * kRun)));
  const auto add_rows = [&](float* table, const int32_t* rows) {
    with_element(dy.dtype, [&]<class T>(T) {
      launch(embedding_backward_kernel<T>, grid, kTokenBlock,
             shared_bytes<unsigned>(kTokenBlock / kWarpThreads), stream, table, rows, elements<T>(dy), count,
             hidden, fit_vectors({{ref(table), hidden}, {dy, hidden}}));
    });
  };
  add_rows(dtable, tokens);
  if (dposition) add_rows(dposition, positions);
}

void first_of_document(int32_t* document_first, int64_t positions, const int32_t* starts, int64_t documents,
                       Stream stream) {
  launch_over(first_of_document_kernel, positions, stream, document_first, positions, starts, documents);
}

}  // namespace trainer::TRAINER_DEVICE_NAMESPACE
