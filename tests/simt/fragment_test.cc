// The tensor core's fragments, on the simulated device: loads element by element against the layout that the
// PTX ISA gives for mma.m16n8k16, products against plain loops.
#include "cuda/fragment.h"

#include <gtest/gtest.h>

#include <vector>

#include "ops/bf16.h"

namespace trainer::simt {
namespace {

constexpr int kGap = 8;

// Numbers that bf16 holds exactly, no two alike in a matrix.
float element(int row, int column) { return static_cast<float>(row * 16 + column) - 100.0f; }
float low_half(uint32_t pair) { return bf16_to_float(static_cast<uint16_t>(pair)); }
float high_half(uint32_t pair) { return bf16_to_float(static_cast<uint16_t>(pair >> 16)); }

// Lays [rows, columns] down in shared memory as `lay(row, column)`, rows columns + kGap apart.
template <class Lay>
SharedSpan<Bf16> lay_down(SharedArena& arena, int rows, int columns, const Lay& lay) {
  const SharedSpan<Bf16> matrix = arena.take<Bf16>(rows * (columns + kGap));
  for (int i = static_cast<int>(threadIdx.x); i < rows * columns; i += kWarpThreads) {
    matrix[i / columns * (columns + kGap) + i % columns] = __float2bfloat16_rn(lay(i / columns, i % columns));
  }
  __syncthreads();
  return matrix;
}

template <class Body>
void run_warp(Body body, uint64_t seed = 0) {
  Machine machine({.seed = seed});
  launch([&] { body(); }, 1, kWarpThreads, 16384, &machine);
}

template <bool kTransposed>
void expect_layout_of_a() {
  run_warp([] {
    SharedArena arena;
    const int rows = kTransposed ? 32 : 48, columns = kTransposed ? 48 : 32;
    const SharedSpan<Bf16> matrix = lay_down(arena, rows, columns, [](int row, int column) {
      // The [16, 16] at row 32, depth 16 of the matrix itself.
      return kTransposed ? element(column - 32, row - 16) : element(row - 32, column - 16);
    });
    FragmentA a;
    load_a<kTransposed>(a, matrix, columns + kGap, 32, 16);
    const int group = lane_index() / 4, in_group = lane_index() % 4;
    for (int i = 0; i < 8; ++i) {  // a0 to a7 of the PTX ISA
      const int row = i < 2 || (i >= 4 && i < 6) ? group : group + 8;
      const int column = in_group * 2 + (i & 1) + (i >= 4 ? 8 : 0);
      const float actual = i % 2 == 0 ? low_half(a.pairs[i / 2]) : high_half(a.pairs[i / 2]);
      EXPECT_EQ(actual, bf16_to_float(float_to_bf16(element(row, column))))
          << "a" << i << " of lane " << lane_index();
    }
  });
}

TEST(Fragment, AHasTheLayoutOfTheIsa) { expect_layout_of_a<false>(); }
TEST(Fragment, AOfATransposeHasTheLayoutOfTheIsa) { expect_layout_of_a<true>(); }

template <bool kTransposed>
void expect_layout_of_b() {
  run_warp([] {
    SharedArena arena;
    // b is [16 depth, 8]; two of them side by side, at column 16 and depth 16.
    const int rows = 32, columns = 32;
    const SharedSpan<Bf16> matrix = lay_down(arena, rows, columns, [](int row, int column) {
      return kTransposed ? element(row - 16, column - 16) : element(column - 16, row - 16);
    });
    FragmentB b[2];
    load_b<kTransposed>(b[0], b[1], matrix, columns + kGap, 16, 16);
    const int group = lane_index() / 4, in_group = lane_index() % 4;
    for (int side = 0; side < 2; ++side) {
      for (int i = 0; i < 4; ++i) {  // b0 to b3
        const int row = in_group * 2 + (i & 1) + (i >= 2 ? 8 : 0), column = group + 8 * side;
        const float actual = i % 2 == 0 ? low_half(b[side].pairs[i / 2]) : high_half(b[side].pairs[i / 2]);
        EXPECT_EQ(actual, bf16_to_float(float_to_bf16(element(row, column))))
            << "b" << i << " of lane " << lane_index() << ", side " << side;
      }
    }
  });
}

TEST(Fragment, BHasTheLayoutOfTheIsa) { expect_layout_of_b<false>(); }
TEST(Fragment, BOfATransposeHasTheLayoutOfTheIsa) { expect_layout_of_b<true>(); }

TEST(Fragment, CHasTheLayoutOfTheIsa) {
  run_warp([] {
    const int group = lane_index() / 4, in_group = lane_index() % 4;
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(fragment_row(i), i < 2 ? group : group + 8);
      EXPECT_EQ(fragment_column(i), in_group * 2 + (i & 1));
    }
  });
}

// Small whole numbers: every sum is exact.
int small(int row, int column, int salt) { return (row * 7 + column * 5 + salt) % 11 - 5; }

TEST(Fragment, ProductsEqualPlainLoops) {
  std::vector<float> result(16 * 16);
  run_warp([&] {
    SharedArena arena;
    const SharedSpan<Bf16> left = lay_down(
        arena, 16, 16, [](int row, int column) { return static_cast<float>(small(row, column, 1)); });
    const SharedSpan<Bf16> right = lay_down(
        arena, 16, 16, [](int row, int column) { return static_cast<float>(small(row, column, 2)); });
    FragmentA a;
    FragmentB b[2];
    load_a<false>(a, left, 16 + kGap, 0, 0);
    load_b<true>(b[0], b[1], right, 16 + kGap, 0, 0);
    for (int side = 0; side < 2; ++side) {
      FragmentC sums;
      for (int value = 0; value < 4; ++value) {
        sums.values[value] =
            static_cast<float>(small(fragment_row(value), fragment_column(value) + 8 * side, 3));
      }
      mma(sums, a, b[side]);
      for (int value = 0; value < 4; ++value) {
        result[fragment_row(value) * 16 + fragment_column(value) + 8 * side] = sums.values[value];
      }
    }
  });
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 16; ++column) {
      int sum = small(row, column, 3);
      for (int k = 0; k < 16; ++k) sum += small(row, k, 1) * small(k, column, 2);
      EXPECT_EQ(result[row * 16 + column], static_cast<float>(sum)) << row << ", " << column;
    }
  }
}

// (a b) c with the first product's sums as operand of the second one.
TEST(Fragment, SumsAreAnOperandOfTheNextProduct) {
  std::vector<float> result(16 * 8);
  const auto sparse = [](int row, int column, int salt) {
    return (row * 3 + column + salt) % 8 == 0 ? 1 : 0;
  };
  run_warp([&] {
    SharedArena arena;
    const auto lay = [&](int salt) {
      return lay_down(arena, 16, 16, [&, salt](int row, int column) {
        return static_cast<float>(sparse(row, column, salt));
      });
    };
    const SharedSpan<Bf16> first = lay(1), second = lay(2), third = lay(3);
    FragmentA a;
    FragmentB b[2], c[2];
    load_a<false>(a, first, 16 + kGap, 0, 0);
    load_b<true>(b[0], b[1], second, 16 + kGap, 0, 0);
    load_b<true>(c[0], c[1], third, 16 + kGap, 0, 0);
    FragmentC inner[2] = {}, outer = {};
    mma(inner[0], a, b[0]);
    mma(inner[1], a, b[1]);
    mma(outer, as_operand(inner[0], inner[1]), c[0]);
    for (int value = 0; value < 4; ++value)
      result[fragment_row(value) * 8 + fragment_column(value)] = outer.values[value];
  });
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 8; ++column) {
      int sum = 0;
      for (int j = 0; j < 16; ++j) {
        for (int k = 0; k < 16; ++k) sum += sparse(row, k, 1) * sparse(k, j, 2) * sparse(j, column, 3);
      }
      EXPECT_EQ(result[row * 8 + column], static_cast<float>(sum)) << row << ", " << column;
    }
  }
}

TEST(Fragment, ARowThatIsNotAlignedIsRefused) {
  EXPECT_THROW(run_warp([] {
                 SharedArena arena;
                 const SharedSpan<Bf16> matrix = lay_down(arena, 16, 32, [](int, int) { return 1.0f; });
                 FragmentA a;
                 load_a<false>(a, matrix, 32 + kGap, 0, 4);
               }),
               RunError);
}

}  // namespace
}  // namespace trainer::simt
