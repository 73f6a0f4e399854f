// fp32: a block of 256 threads makes a square tile of c, each thread [8, 8] or [4, 4] of it by plain
// multiply-add. The next step's operands wait in registers meanwhile.
#include "cuda/fragment.h"
#include "cuda/gemm_arguments.h"

namespace trainer::TRAINER_DEVICE_NAMESPACE {
namespace {

constexpr int kFloatThreads = 256, kFloatDepth = 16;

// One operand's tile of one step, [kFloatDepth, kTile] in shared memory.
template <bool kTransposed, int kTile>
struct FloatTile {
  static constexpr int kStride = kTile + 4, kElements = kFloatDepth * kStride;
  static constexpr int kOwn = kTile * kFloatDepth / kFloatThreads;  // elements that one thread moves
  float own[kOwn];

  // Neighbouring threads take neighbours in memory.
  static __device__ __forceinline__ int depth_of(int i) {
    const int element = static_cast<int>(threadIdx.x) + i * kFloatThreads;
    return kTransposed ? element / kTile : element % kFloatDepth;
  }
  static __device__ __forceinline__ int place_of(int i) {
    const int element = static_cast<int>(threadIdx.x) + i * kFloatThreads;
    return kTransposed ? element % kTile : element / kFloatDepth;
  }
  __device__ __forceinline__ void load(const GemmOperand<float>& from, int first, int depth) {
    TRAINER_UNROLL
    for (int i = 0; i < kOwn; ++i) {
      const int row = kTransposed ? depth + depth_of(i) : first + place_of(i);
      const int column = kTransposed ? first + place_of(i) : depth + depth_of(i);
      const bool inside = row < from.rows && column < from.columns;
      own[i] = inside ? from.data[static_cast<int64_t>(row) * from.columns + column] : 0.0f;
    }
  }
  __device__ __forceinline__ void store(SharedSpan<float> to) const {
    TRAINER_UNROLL
    for (int i = 0; i < kOwn; ++i) to[depth_of(i) * kStride + place_of(i)] = own[i];
  }
};

template <bool kTransposedA, bool kTransposedB, int kTile>
__global__ void __launch_bounds__(kFloatThreads) gemm_f32_kernel(GemmArguments<float> g) {
  using TileA = FloatTile<kTransposedA, kTile>;
  using TileB = FloatTile<kTransposedB, kTile>;
  constexpr int kParts = kTile / 64;  // a thread's rows and columns: 4 in each part of 64
  SharedArena arena;
  const SharedSpan<float> a = arena.take<float>(TileA::kElements), b = arena.take<float>(TileB::kElements);
  const TilePlace place = tile_place(g.m, g.n, kTile);
  const int own_row = static_cast<int>(threadIdx.x) / 16 * 4,
            own_column = static_cast<int>(threadIdx.x) % 16 * 4;

  TileA next_a;
  TileB next_b;
  next_a.load(g.a, place.row, 0);
  next_b.load(g.b, place.column, 0);
  float sums[4 * kParts][4 * kParts] = {};
  for (int depth = 0; depth < g.k; depth += kFloatDepth) {
    __syncthreads();  // nobody reads the step before
    next_a.store(a);
    next_b.store(b);
    __syncthreads();
    next_a.load(g.a, place.row, depth + kFloatDepth);
    next_b.load(g.b, place.column, depth + kFloatDepth);
    TRAINER_UNROLL
    for (int k = 0; k < kFloatDepth; ++k) {
      float left[4 * kParts], right[4 * kParts];
      TRAINER_UNROLL
      for (int part = 0; part < kParts; ++part) {
        const float4 l = (a + (k * TileA::kStride + 64 * part + own_row)).template as<float4>()[0];
        const float4 r = (b + (k * TileB::kStride + 64 * part + own_column)).template as<float4>()[0];
        left[4 * part] = l.x, left[4 * part + 1] = l.y, left[4 * part + 2] = l.z, left[4 * part + 3] = l.w;
        right[4 * part] = r.x, right[4 * part + 1] = r.y, right[4 * part + 2] = r.z,
                  right[4 * part + 3] = r.w;
      }
      TRAINER_UNROLL
      for (int i = 0; i < 4 * kParts; ++i) {
        TRAINER_UNROLL
        for (int j = 0; j < 4 * kParts; ++j) sums[i][j] = multiply_add(left[i], right[j], sums[i][j]);
      }
    }
  }
  TRAINER_UNROLL
  for (int i = 0; i < 4 * kParts; ++i) {
    TRAINER_UNROLL
    for (int j = 0; j < 4 * kParts; j += 2) {
      g.result.store_pair(place.row + i / 4 * 64 + own_row + i % 4,
                          place.column + j / 4 * 64 + own_column + j % 4, sums[i][j], sums[i][j + 1]);
    }
  }
}

template <bool kTransposedA, bool kTransposedB, int kTile>
void launch_f32(const GemmArguments<float>& g, Stream stream) {
  constexpr size_t kElements =
      FloatTile<kTransposedA, kTile>::kElements + FloatTile<kTransposedB, kTile>::kElements;
  launch(gemm_f32_kernel<kTransposedA, kTransposedB, kTile>, tile_count(g.m, g.n, kTile), kFloatThreads,
         kElements * sizeof(float), stream, g);
}

template <bool kTransposedA, bool kTransposedB>
void choose_f32(const GemmArguments<float>& g, Stream stream) {
  if (tile_count(g.m, g.n, 128) >= kEnoughTiles) {
    launch_f32<kTransposedA, kTransposedB, 128>(g, stream);
  } else {
    launch_f32<kTransposedA, kTransposedB, 64>(g, stream);
  }
}

}  // namespace

void run_gemm(GemmForm form, const GemmArguments<float>& g, Stream stream) {
  switch (form) {
    case GemmForm::kNT:
      return choose_f32<false, false>(g, stream);
    case GemmForm::kNN:
      return choose_f32<false, true>(g, stream);
    case GemmForm::kTN:
      return choose_f32<true, true>(g, stream);
  }
}

}  // namespace trainer::TRAINER_DEVICE_NAMESPACE
