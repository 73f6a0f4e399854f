// The device's matrix products on the simulated device, against the reference.
#include "cuda/gemm.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>

#include "ops/array.h"
#include "ops/kernel_set.h"
#include "support/thinning.h"

namespace trainer::simt {
namespace {

struct ProductSize {
  int64_t m, n, k;
  std::string text() const { return fmt::format("{} x {} x {}", m, n, k); }
};

class DeviceGemm : public ::testing::TestWithParam<DType> {
 protected:
  DType dtype() const { return GetParam(); }
  // Of results in the operands' type; sums are in fp32, so those that stay there are as close whatever the
  // operands.
  double within() const { return dtype() == DType::kF32 ? 2e-5 : 0x1p-7; }
  static constexpr double kWithinSums = 2e-5;

  std::unique_ptr<KernelSet> reference_ = make_reference_kernels();
};

struct Products {
  Products(DType type, const ProductSize& s)
      : y(type, s.m * s.n, 5),
        dx(type, s.m * s.k, 6),
        dx_added(type, s.m * s.k, 7),
        dw(DType::kF32, s.n * s.k, 8) {}
  Array y, dx, dx_added, dw;
};

struct Operands {
  Operands(DType type, const ProductSize& s)
      : x(type, s.m * s.k, 1), w(type, s.n * s.k, 2), dy(type, s.m * s.n, 3), bias(type, s.n, 4) {}
  Array x, w, dy, bias;
};

Products all_products(DType type, const ProductSize& s, Stream stream) {
  const auto& [m, n, k] = s;
  const Operands o(type, s);
  Products p(type, s);
  gemm_nt(p.y.ref(), o.x.ref(), o.w.ref(), o.bias.ref(), m, n, k, stream);
  gemm_nn(p.dx.ref(), o.dy.ref(), o.w.ref(), m, n, k, false, stream);
  gemm_nn(p.dx_added.ref(), o.dy.ref(), o.w.ref(), m, n, k, true, stream);
  gemm_tn(p.dw.f32(), o.dy.ref(), o.x.ref(), m, n, k, true, stream);
  return p;
}

// Both sides of the borders of tiles and steps; rows that begin at multiples of 16 bytes and others.
constexpr ProductSize kOddSizes[] = {{1, 1, 1},   {3, 5, 2},    {65, 7, 33},  {16, 70, 129}, {40, 64, 31},
                                     {64, 8, 64}, {72, 136, 8}, {24, 72, 96}, {1, 128, 168}, {130, 2, 40}};

TEST_P(DeviceGemm, EqualsTheReferenceAtOddSizes) {
  for (const ProductSize& s : kOddSizes) {
    const auto& [m, n, k] = s;
    const Operands o(dtype(), s);
    Products expected(dtype(), s);
    reference_->linear_forward(expected.y.ref(), o.x.ref(), o.w.ref(), o.bias.ref(), m, n, k);
    reference_->linear_backward_input(expected.dx.ref(), o.dy.ref(), o.w.ref(), m, n, k, false);
    reference_->linear_backward_input(expected.dx_added.ref(), o.dy.ref(), o.w.ref(), m, n, k, true);
    reference_->linear_backward_weight(expected.dw.f32(), o.dy.ref(), o.x.ref(), m, n, k, true);
    const Products actual = all_products(dtype(), s, nullptr);
    expect_near(expected.y, actual.y, within(), "y " + s.text());
    expect_near(expected.dx, actual.dx, within(), "dx " + s.text());
    expect_near(expected.dx_added, actual.dx_added, within(), "dx, added, " + s.text());
    expect_near(expected.dw, actual.dw, kWithinSums, "dw " + s.text());
  }
}

TEST_P(DeviceGemm, BitsDoNotDependOnTheOrderOfThreads) {
  for (const ProductSize& s : {ProductSize{65, 7, 33}, {72, 136, 40}}) {
    const Products in_turn = all_products(dtype(), s, nullptr);
    for (const uint64_t seed : {1, 2, 3}) {
      Machine machine({.seed = seed});
      const Products random = all_products(dtype(), s, &machine);
      expect_same_bits(in_turn.y, random.y, "y " + s.text());
      expect_same_bits(in_turn.dx, random.dx, "dx " + s.text());
      expect_same_bits(in_turn.dx_added, random.dx_added, "dx, added, " + s.text());
      expect_same_bits(in_turn.dw, random.dw, "dw " + s.text());
    }
  }
}

// Products large enough for large tiles; a few of their rows by themselves have small ones.
TEST_P(DeviceGemm, ARowHasTheSameBitsInAnyBatch) {
  if (trainer::testing::kThinned) GTEST_SKIP() << "AddressSanitizer goes without it: it takes long";
  for (const ProductSize& s : {ProductSize{1030, 1420, 19}, {1032, 1416, 24}}) {
    const auto& [m, n, k] = s;
    const Operands o(dtype(), s);
    Array all(dtype(), m * n, 5), expected(dtype(), n, 6), one(dtype(), n, 7);
    gemm_nt(all.ref(), o.x.ref(), o.w.ref(), o.bias.ref(), m, n, k, nullptr);
    for (const int64_t row : {int64_t{0}, int64_t{129}, m - 1}) {
      const ConstRef x = o.x.ref().at(row * k);
      gemm_nt(one.ref(), x, o.w.ref(), o.bias.ref(), 1, n, k, nullptr);
      for (int64_t column = 0; column < n; ++column) {
        ASSERT_EQ(all.at(row * n + column), one.at(column)) << s.text() << ": " << row << ", " << column;
      }
      reference_->linear_forward(expected.ref(), x, o.w.ref(), o.bias.ref(), 1, n, k);
      expect_near(expected, one, within(), "y " + s.text());
    }
  }
}

TEST_P(DeviceGemm, LargeTilesOfTheOtherDirections) {
  if (trainer::testing::kThinned) GTEST_SKIP() << "AddressSanitizer goes without it: it takes long";
  const ProductSize input{1032, 24, 1416}, weight{21, 1033, 1412};
  const Operands i(dtype(), input), w(dtype(), weight);
  Array dx(dtype(), input.m * input.k, 5), expected_dx(dtype(), input.k, 6);
  gemm_nn(dx.ref(), i.dy.ref(), i.w.ref(), input.m, input.n, input.k, false, nullptr);
  for (const int64_t row : {int64_t{127}, input.m - 1}) {
    Array actual(dtype(), input.k, 7);
    for (int64_t c = 0; c < input.k; ++c) actual.set(c, dx.at(row * input.k + c));
    reference_->linear_backward_input(expected_dx.ref(), i.dy.ref().at(row * input.n), i.w.ref(), 1, input.n,
                                      input.k, false);
    expect_near(expected_dx, actual, within(), fmt::format("row {} of dx", row));
  }
  Array dw(DType::kF32, weight.n * weight.k, 8), expected_dw(dw);
  gemm_tn(dw.f32(), w.dy.ref(), w.x.ref(), weight.m, weight.n, weight.k, true, nullptr);
  reference_->linear_backward_weight(expected_dw.f32(), w.dy.ref(), w.x.ref(), weight.m, weight.n, weight.k,
                                     true);
  expect_near(expected_dw, dw, kWithinSums, "dw");
}

TEST_P(DeviceGemm, NonFiniteOperandsReachExactlyTheirResults) {
  const ProductSize s{40, 45, 30};
  Operands o(dtype(), s);
  Array y(dtype(), s.m * s.n, 5);
  o.x.set(17 * s.k + 3, NAN);
  o.w.set(31 * s.k + 5, INFINITY);
  gemm_nt(y.ref(), o.x.ref(), o.w.ref(), {}, s.m, s.n, s.k, nullptr);
  for (int64_t i = 0; i < y.size(); ++i) {
    ASSERT_EQ(std::isfinite(y.at(i)), i / s.n != 17 && i % s.n != 31) << i / s.n << ", " << i % s.n;
  }
}

// A result, and a bias, of another type than the operands.
TEST_P(DeviceGemm, ResultsInFloatFromAnyOperands) {
  const ProductSize s{33, 70, 48};
  const Operands o(dtype(), s);
  const Array bias(DType::kF32, s.n, 4);
  Array y(DType::kF32, s.m * s.n, 5), expected(y);
  gemm_nt(y.ref(), o.x.ref(), o.w.ref(), bias.ref(), s.m, s.n, s.k, nullptr);
  reference_->linear_forward(expected.ref(), o.x.ref(), o.w.ref(), bias.ref(), s.m, s.n, s.k);
  expect_near(expected, y, kWithinSums, "y");
}

TEST_P(DeviceGemm, NothingToSum) {
  const Array bias(dtype(), 3, 1);
  Array y(dtype(), 6, 2), dx(dtype(), 6, 3);
  gemm_nt(y.ref(), bias.ref(), bias.ref(), bias.ref(), 2, 3, 0, nullptr);
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(y.at(i), bias.at(i % 3));
  gemm_nn(dx.ref(), bias.ref(), bias.ref(), 2, 0, 3, false, nullptr);
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(dx.at(i), 0.0);
}

TEST(DeviceGemmErrors, OperandsOfTwoTypesAreRefused) {
  const Array x(DType::kF32, 4, 1), w(DType::kBF16, 4, 2);
  Array y(DType::kF32, 4, 3);
  EXPECT_THROW(gemm_nt(y.ref(), x.ref(), w.ref(), {}, 2, 2, 2, nullptr), std::logic_error);
}

INSTANTIATE_TEST_SUITE_P(Simt, DeviceGemm, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace trainer::simt
