#include "ops/op_test.h"

namespace trainer {
namespace {

class LinearTest : public OpTest {};

struct LinearShape {
  int64_t m, n, k;
};
constexpr LinearShape kLinearShapes[] = {{1, 1, 1},     {1, 17, 3},   {3, 1, 65},  {17, 65, 3},
                                         {65, 17, 130}, {64, 48, 32}, {7, 129, 33}};

WorkspaceShape bounds(const LinearShape& s) {
  return {.tokens = s.m, .widest_row = std::max(s.n, s.k), .hidden = std::max(s.n, s.k)};
}

TEST_P(LinearTest, ForwardWithAndWithoutBias) {
  for (const LinearShape& s : kLinearShapes) {
    const Granted kernels = granted(bounds(s));
    const Array x(dtype(), s.m * s.k, 1), w(dtype(), s.n * s.k, 2), bias(dtype(), s.n, 3);
    for (const ConstRef b : {ConstRef{}, bias.ref()}) {
      Array expected(dtype(), s.m * s.n, 4), actual(expected);
      reference_->linear_forward(expected.ref(), x.ref(), w.ref(), b, s.m, s.n, s.k);
      kernels->linear_forward(actual.ref(), x.ref(), w.ref(), b, s.m, s.n, s.k);
      expect_near(expected, actual, within("linear"), fmt::format("y {}x{}x{}", s.m, s.n, s.k));
    }
  }
}

TEST_P(LinearTest, BackwardInputWritesOrAccumulates) {
  for (const LinearShape& s : kLinearShapes) {
    const Granted kernels = granted(bounds(s));
    const Array dy(dtype(), s.m * s.n, 1), w(dtype(), s.n * s.k, 2);
    for (const bool accumulate : {false, true}) {
      Array expected(dtype(), s.m * s.k, 3), actual(expected);
      reference_->linear_backward_input(expected.ref(), dy.ref(), w.ref(), s.m, s.n, s.k, accumulate);
      kernels->linear_backward_input(actual.ref(), dy.ref(), w.ref(), s.m, s.n, s.k, accumulate);
      expect_near(expected, actual, within("linear"), fmt::format("dx {}x{}x{}", s.m, s.n, s.k));
    }
  }
}

TEST_P(LinearTest, WrittenOutputMayHoldAnythingBefore) {
  const LinearShape s{5, 19, 21};
  const Granted kernels = granted(bounds(s));
  const Array x(dtype(), s.m * s.k, 1), w(dtype(), s.n * s.k, 2), dy(dtype(), s.m * s.n, 3);
  Array y = Array::filled(dtype(), s.m * s.n, NAN), dx = Array::filled(dtype(), s.m * s.k, NAN);
  Array expected_y(y), expected_dx(dx);
  kernels->linear_forward(y.ref(), x.ref(), w.ref(), {}, s.m, s.n, s.k);
  reference_->linear_forward(expected_y.ref(), x.ref(), w.ref(), {}, s.m, s.n, s.k);
  expect_near(expected_y, y, within("linear"), "y");
  kernels->linear_backward_input(dx.ref(), dy.ref(), w.ref(), s.m, s.n, s.k, false);
  reference_->linear_backward_input(expected_dx.ref(), dy.ref(), w.ref(), s.m, s.n, s.k, false);
  expect_near(expected_dx, dx, within("linear"), "dx");
}

TEST_P(LinearTest, BackwardWeightAndBiasAdd) {
  for (const LinearShape& s : kLinearShapes) {
    const Granted kernels = granted(bounds(s));
    const Array dy(dtype(), s.m * s.n, 1), x(dtype(), s.m * s.k, 2);
    Array expected(DType::kF32, s.n * s.k, 3), actual(expected);
    Array expected_bias(DType::kF32, s.n, 4), actual_bias(expected_bias);
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
      reference_->linear_backward_weight(expected.f32(), dy.ref(), x.ref(), s.m, s.n, s.k, true);
      kernels->linear_backward_weight(actual.f32(), dy.ref(), x.ref(), s.m, s.n, s.k, true);
      reference_->bias_backward(expected_bias.f32(), dy.ref(), s.m, s.n);
      kernels->bias_backward(actual_bias.f32(), dy.ref(), s.m, s.n);
    }
    expect_near(expected, actual, within("linear weight"), fmt::format("dw {}x{}x{}", s.m, s.n, s.k));
    expect_near(expected_bias, actual_bias, within("linear weight"), fmt::format("db {}x{}", s.m, s.n));
  }
}

TRAINER_OP_CASES(LinearTest);

}  // namespace
}  // namespace trainer
