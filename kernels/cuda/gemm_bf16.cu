// bf16: a block of threads makes a square tile of c; the operands' tiles pass through shared memory in a ring
// of copies under way, and each warp multiplies fragments.
#include "cuda/copy.h"
#include "cuda/fragment.h"
#include "cuda/gemm_arguments.h"

namespace trainer::TRAINER_DEVICE_NAMESPACE {
namespace {

constexpr int kDepth = 32;  // of one step
constexpr int kRing = 3;    // steps in shared memory
constexpr int kGap = 8;     // elements between rows there: eight consecutive rows then lie in different banks

// Warps of a block, and what one of them makes: [16 kM, 8 kN] of c.
template <int kTile>
struct WarpGrid;
template <>
struct WarpGrid<128> {
  static constexpr int kRows = 2, kColumns = 4, kM = 4, kN = 4;
};
template <>
struct WarpGrid<64> {
  static constexpr int kRows = 2, kColumns = 2, kM = 2, kN = 4;
};

template <int kTile>
constexpr int kGemmThreads = 32 * WarpGrid<kTile>::kRows* WarpGrid<kTile>::kColumns;

// One operand's tile of one step: [kTile, kDepth], or [kDepth, kTile] where memory holds the transpose.
template <bool kTransposed, int kTile>
struct OperandTile {
  static constexpr int kStride = (kTransposed ? kTile : kDepth) + kGap;
  static constexpr int kElements = (kTransposed ? kDepth : kTile) * kStride;

  static __device__ __forceinline__ void copy(CopyQueue& queue, SharedSpan<Bf16> to,
                                              const GemmOperand<Bf16>& from, int first, int depth) {
    if constexpr (kTransposed) {
      copy_tile<kDepth, kTile, kStride, kGemmThreads<kTile>>(queue, to, from.tile(depth, first));
    } else {
      copy_tile<kTile, kDepth, kStride, kGemmThreads<kTile>>(queue, to, from.tile(first, depth));
    }
  }
};

template <bool kTransposedA, bool kTransposedB, int kTile>
__global__ void __launch_bounds__(kGemmThreads<kTile>) gemm_bf16_kernel(GemmArguments<Bf16> g) {
  using Grid = WarpGrid<kTile>;
  using TileA = OperandTile<kTransposedA, kTile>;
  using TileB = OperandTile<kTransposedB, kTile>;
  constexpr int kM = Grid::kM, kN = Grid::kN;
  SharedArena arena;
  const SharedSpan<Bf16> ring_a = arena.take<Bf16>(kRing * TileA::kElements);
  const SharedSpan<Bf16> ring_b = arena.take<Bf16>(kRing * TileB::kElements);
  const TilePlace place = tile_place(g.m, g.n, kTile);
  const int warp_row = warp_index() / Grid::kColumns * 16 * kM,
            warp_column = warp_index() % Grid::kColumns * 8 * kN;

  CopyQueue queue;
  const int steps = (g.k + kDepth - 1) / kDepth;
  const auto begin_copy = [&](int step) {
    if (step < steps) {
      TileA::copy(queue, ring_a + step % kRing * TileA::kElements, g.a, place.row, step * kDepth);
      TileB::copy(queue, ring_b + step % kRing * TileB::kElements, g.b, place.column, step * kDepth);
    }
    queue.commit();  // also an empty one: the queue counts
  };
  for (int step = 0; step < kRing - 1; ++step) begin_copy(step);

  FragmentC sums[kM][kN] = {};
  for (int step = 0; step < steps; ++step) {
    queue.wait<kRing - 2>();
    __syncthreads();  // everyone's copies of this step are there, and nobody reads the place of the next
    begin_copy(step + kRing - 1);
    const SharedSpan<Bf16> a = ring_a + step % kRing * TileA::kElements;
    const SharedSpan<Bf16> b = ring_b + step % kRing * TileB::kElements;
    TRAINER_UNROLL
    for (int depth = 0; depth < kDepth; depth += 16) {
      FragmentA left[kM];
      FragmentB right[kN];
      TRAINER_UNROLL
      for (int m = 0; m < kM; ++m) load_a<kTransposedA>(left[m], a, TileA::kStride, warp_row + 16 * m, depth);
      TRAINER_UNROLL
      for (int n = 0; n < kN; n += 2) {
        load_b<kTransposedB>(right[n], right[n + 1], b, TileB::kStride, warp_column + 8 * n, depth);
      }
      TRAINER_UNROLL
      for (int m = 0; m < kM; ++m) {
        TRAINER_UNROLL
        for (int n = 0; n < kN; ++n) mma(sums[m][n], left[m], right[n]);
      }
    }
  }
  queue.wait<0>();
  TRAINER_UNROLL
  for (int m = 0; m < kM; ++m) {
    TRAINER_UNROLL
    for (int n = 0; n < kN; ++n) {
      TRAINER_UNROLL
      for (int value = 0; value < 4; value += 2) {
        g.result.store_pair(place.row + warp_row + 16 * m + fragment_row(value),
                            place.column + warp_column + 8 * n + fragment_column(value),
                            sums[m][n].values[value], sums[m][n].values[value + 1]);
      }
    }
  }
}

template <bool kTransposedA, bool kTransposedB, int kTile>
void launch_bf16(const GemmArguments<Bf16>& g, Stream stream) {
  constexpr size_t kElements =
      OperandTile<kTransposedA, kTile>::kElements + OperandTile<kTransposedB, kTile>::kElements;
  launch(gemm_bf16_kernel<kTransposedA, kTransposedB, kTile>, tile_count(g.m, g.n, kTile),
         kGemmThreads<kTile>, kRing * kElements * sizeof(Bf16), stream, g);
}

template <bool kTransposedA, bool kTransposedB>
void choose_bf16(const GemmArguments<Bf16>& g, Stream stream) {
  if (tile_count(g.m, g.n, 128) >= kEnoughTiles) {
    launch_bf16<kTransposedA, kTransposedB, 128>(g, stream);
  } else {
    launch_bf16<kTransposedA, kTransposedB, 64>(g, stream);
  }
}

}  // namespace

void run_gemm(GemmForm form, const GemmArguments<Bf16>& g, Stream stream) {
  switch (form) {
    case GemmForm::kNT:
      return choose_bf16<false, false>(g, stream);
    case GemmForm::kNN:
      return choose_bf16<false, true>(g, stream);
    case GemmForm::kTN:
      return choose_bf16<true, true>(g, stream);
  }
}

}  // namespace trainer::TRAINER_DEVICE_NAMESPACE
