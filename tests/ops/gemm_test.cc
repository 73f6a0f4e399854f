// Matrix products beyond one block: every block border, operands packed or as they lie, equal bits for any
// number of threads. Shapes are thin, so that the reference is quick.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "cpu/blocked_product.h"
#include "ops/gemm_rate.h"
#include "ops/op_test.h"

namespace trainer {
namespace {

class GemmTest : public OpTest {
 protected:
  Granted granted_for(int64_t m, int64_t n, int64_t k, int threads = 2) const {
    return granted({.tokens = m, .widest_row = std::max(n, k)}, threads);
  }
};

struct Shape {
  int64_t m, n, k;
};
// Rows past 1024, columns past 2048, sums past 1024 and, in pairs, 2048: alone and together. Whole tiles,
// which some levels take as they lie, in all parts of a sum or in some.
constexpr Shape kShapes[] = {{1025, 33, 5},   {2050, 1, 3},    {3, 2081, 17},  {29, 70, 1025},
                             {1, 1, 5000},    {1031, 2049, 2}, {64, 96, 96},   {1088, 32, 32},
                             {64, 70, 2100},  {64, 33, 2101},  {2100, 40, 64}, {1088, 40, 4128},
                             {2100, 1056, 33}};

TEST_P(GemmTest, EveryDirectionAcrossBlocks) {
  for (const auto& [m, n, k] : kShapes) {
    const std::string what = fmt::format("{} x {} x {}", m, n, k);
    const Granted kernels = granted_for(m, n, k);
    const Array x(dtype(), m * k, 1), w(dtype(), n * k, 2), dy(dtype(), m * n, 3), bias(dtype(), n, 4);
    Array y(dtype(), m * n, 5), expected_y(y), dx(dtype(), m * k, 6), expected_dx(dx);
    Array dw(DType::kF32, n * k, 7), expected_dw(dw);
    reference_->linear_forward(expected_y.ref(), x.ref(), w.ref(), bias.ref(), m, n, k);
    kernels->linear_forward(y.ref(), x.ref(), w.ref(), bias.ref(), m, n, k);
    expect_near(expected_y, y, 4 * within("linear"), "y " + what);
    reference_->linear_backward_input(expected_dx.ref(), dy.ref(), w.ref(), m, n, k, true);
    kernels->linear_backward_input(dx.ref(), dy.ref(), w.ref(), m, n, k, true);
    expect_near(expected_dx, dx, 4 * within("linear"), "dx " + what);
    reference_->linear_backward_weight(expected_dw.f32(), dy.ref(), x.ref(), m, n, k, true);
    kernels->linear_backward_weight(dw.f32(), dy.ref(), x.ref(), m, n, k, true);
    expect_near(expected_dw, dw, 4 * within("linear weight"), "dw " + what);
  }
}

// Whatever lay there before.
TEST_P(GemmTest, AWeightsFirstGradientIsWritten) {
  for (const auto& [m, n, k] : {Shape{3, 5, 7}, {70, 90, 65}, {2100, 40, 33}}) {
    const std::string what = fmt::format("{} x {} x {}", m, n, k);
    const Granted kernels = granted_for(m, n, k);
    const Array x(dtype(), m * k, 1), dy(dtype(), m * n, 3);
    Array written = Array::filled(DType::kF32, n * k, NAN), added = Array::filled(DType::kF32, n * k, 0.0);
    kernels->linear_backward_weight(written.f32(), dy.ref(), x.ref(), m, n, k, false);
    kernels->linear_backward_weight(added.f32(), dy.ref(), x.ref(), m, n, k, true);
    for (int64_t i = 0; i < n * k; ++i) ASSERT_EQ(added.at(i), written.at(i)) << what << " at " << i;
  }
}

TEST_P(GemmTest, BitsDoNotDependOnThreads) {
  for (const auto& [m, n, k] :
       {Shape{1, 2, 20000}, {5, 33, 9001}, {70, 90, 1100}, {1030, 70, 8}, {8, 2100, 3}}) {
    const Array x(dtype(), m * k, 1), w(dtype(), n * k, 2), dy(dtype(), m * n, 3);
    Array y(dtype(), m * n, 5), dx(dtype(), m * k, 6), dw(DType::kF32, n * k, 7);
    const auto run = [&](int threads, Array& to_y, Array& to_dx, Array& to_dw) {
      const Granted kernels = granted_for(m, n, k, threads);
      kernels->linear_forward(to_y.ref(), x.ref(), w.ref(), {}, m, n, k);
      kernels->linear_backward_input(to_dx.ref(), dy.ref(), w.ref(), m, n, k, false);
      kernels->linear_backward_weight(to_dw.f32(), dy.ref(), x.ref(), m, n, k, true);
    };
    Array y1(y), dx1(dx), dw1(dw);
    run(1, y1, dx1, dw1);
    for (const int threads : {2, 3}) {
      Array y2(y), dx2(dx), dw2(dw);
      run(threads, y2, dx2, dw2);
      const std::string what = fmt::format("{} x {} x {} on {} threads", m, n, k, threads);
      expect_same_bits(y1, y2, "y " + what);
      expect_same_bits(dx1, dx2, "dx " + what);
      expect_same_bits(dw1, dw2, "dw " + what);
    }
  }
}

TEST_P(GemmTest, ARowHasTheSameBitsInAnyBatch) {
  const int64_t n = 37;
  for (const auto& [m, k] : {std::pair<int64_t, int64_t>{1100, 1500}, {1088, 1504}}) {
    const Array x(dtype(), m * k, 1), w(dtype(), n * k, 2);
    Array all(dtype(), m * n, 3);
    granted_for(m, n, k)->linear_forward(all.ref(), x.ref(), w.ref(), {}, m, n, k);
    for (const int64_t row : {int64_t{0}, int64_t{13}, int64_t{1024}, m - 1}) {
      Array one(dtype(), n, 4);
      granted_for(1, n, k)->linear_forward(one.ref(), x.ref().at(row * k), w.ref(), {}, 1, n, k);
      for (int64_t column = 0; column < n; ++column) {
        ASSERT_EQ(one.at(column), all.at(row * n + column)) << m << ": row " << row << " column " << column;
      }
    }
  }
}

TEST_P(GemmTest, NonFiniteOperandsReachExactlyTheirResults) {
  const int64_t m = 40, n = 45, k = 30;
  Array x(dtype(), m * k, 1), w(dtype(), n * k, 2), y(dtype(), m * n, 3);
  x.set(17 * k + 3, NAN);
  w.set(31 * k + 5, INFINITY);
  granted_for(m, n, k)->linear_forward(y.ref(), x.ref(), w.ref(), {}, m, n, k);
  for (int64_t row = 0; row < m; ++row) {
    for (int64_t column = 0; column < n; ++column) {
      ASSERT_EQ(std::isfinite(y.at(row * n + column)), row != 17 && column != 31) << row << ", " << column;
    }
  }
}

TRAINER_HOST_CASES(GemmTest);

// The tables of the levels that there are, and the dtype of their operands.
std::vector<std::pair<const TileTable*, DType>> tile_tables() {
  std::vector<std::pair<const TileTable*, DType>> tables;
  for (const Isa isa : available_isas()) {
    tables.emplace_back(&tile_table(isa), DType::kF32);
    if (const TileTable* pairs = bf16_tile_table(isa)) tables.emplace_back(pairs, DType::kBF16);
  }
  return tables;
}

// Blocks end with whole tiles, so they may have more rows than the most that is cut off at once.
TEST(BlockedProduct, KeepsWithinItsWorkspace) {
  constexpr size_t kGuard = 1 << 16;
  constexpr std::byte kUntouched{0xA5};
  const int64_t n = 33;
  const Array bias(DType::kF32, n, 4);
  for (const auto& [tiles, dtype] : tile_tables()) {
    const int64_t k = 1030 * tiles->slot_elements;
    for (const int64_t m : {2048, 3072}) {
      const Array a(dtype, m * k, 1), b(dtype, n * k, 2);
      Array c(DType::kF32, m * n, 3);
      const size_t bytes = blocked_product_bytes(*tiles, 1, m, n, k);
      std::vector<std::byte> memory(bytes + kGuard + 64, kUntouched);
      void* begin = memory.data();
      size_t space = memory.size();
      std::align(64, bytes + kGuard, begin, space);
      const std::span<std::byte> workspace(static_cast<std::byte*>(begin), bytes);
      blocked_product(*tiles, 1,
                      {.c = c.ref(),
                       .c_stride = n,
                       .a = a.ref(),
                       .a_row = k,
                       .a_k = 1,
                       .b = b.ref(),
                       .b_column = k,
                       .b_k = 1,
                       .bias = bias.ref(),
                       .add = false,
                       .m = m,
                       .n = n,
                       .k = k},
                      workspace);
      const std::byte* const end = workspace.data() + bytes;
      EXPECT_TRUE(std::all_of(end, end + kGuard, [](std::byte x) { return x == kUntouched; }))
          << m << " rows, tiles of " << tiles->tile_rows << " x " << tiles->tile_width;
    }
  }
}

// Workspaces are granted for the largest of many products.
TEST(BlockedProduct, SmallerProductsNeedNoMoreWorkspace) {
  for (const auto& [tiles, dtype] : tile_tables()) {
    for (const int threads : {1, 7}) {
      for (const int64_t other : {40, 1500}) {
        size_t before[3] = {};
        for (int64_t size = 1; size < 2400; ++size) {
          const size_t bytes[] = {blocked_product_bytes(*tiles, threads, size, other, other),
                                  blocked_product_bytes(*tiles, threads, other, size, other),
                                  blocked_product_bytes(*tiles, threads, other, other, size)};
          for (int i = 0; i < 3; ++i) {
            ASSERT_GE(bytes[i], before[i]) << "m, n, k"[3 * i] << " = " << size << ", others " << other;
            before[i] = bytes[i];
          }
        }
      }
    }
  }
}

TEST(GemmRate, IsPlausibleAndQuick) {
  const std::unique_ptr<KernelSet> kernels = make_host_kernels(1);
  const GemmShape shapes[] = {{64, 64, 64}, {128, 256, 128}};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const double rate : {measure_gemm_rate(*kernels, dtype, shapes, 0.02),
                              measure_gemm_rate_in_turn(*kernels, dtype, shapes, 0.02)}) {
      EXPECT_GT(rate, 1e7) << name_of(dtype);
      EXPECT_LT(rate, 1e14) << name_of(dtype);
    }
  }
}

}  // namespace
}  // namespace trainer
