#include "ops/op_test.h"

namespace trainer {
namespace {

// outer x inner rows of columns; `gap` elements lie between the outer rows.
struct NormShape {
  int64_t outer, inner, columns, gap;
  int64_t rows() const { return outer * inner; }
  RowShape row_shape() const { return {outer, inner, columns, inner * columns + gap}; }
  int64_t size() const { return outer * (inner * columns + gap); }
};
constexpr NormShape kNormShapes[] = {{1, 1, 1, 0},  {3, 1, 3, 0},   {17, 1, 65, 0},  {5, 1, 17, 7},
                                     {2, 3, 16, 5}, {70, 2, 8, 24}, {33, 1, 768, 0}, {129, 1, 130, 0}};

class NormTest : public OpTest {
 protected:
  Granted granted_for(const NormShape& s) const {
    return granted({.tokens = s.rows(), .widest_row = s.columns, .hidden = s.columns, .head_dim = s.columns});
  }
};

struct Forward {
  Array x, delta, weight, bias, sum, y, mean, reciprocal;
  Forward(DType type, const NormShape& s, const NormShape& y_shape)
      : x(type, s.size(), 1, 3.0),
        delta(type, s.size(), 2),
        weight(type, s.columns, 3),
        bias(type, s.columns, 4),
        sum(type, s.size(), 5),
        y(type, y_shape.size(), 6),
        mean(DType::kF32, s.rows(), 7),
        reciprocal(DType::kF32, s.rows(), 8) {
    for (int64_t i = 0; i < x.size(); ++i) x.set(i, x.at(i) + 1.5);
  }
  NormForward arguments(NormKind kind, const NormShape& s, const NormShape& y_shape, bool with_delta,
                        bool with_bias) {
    return {.kind = kind,
            .x_shape = s.row_shape(),
            .y_shape = y_shape.row_shape(),
            .x = x.ref(),
            .delta = with_delta ? ConstRef(delta.ref()) : ConstRef{},
            .sum = with_delta ? sum.ref() : Ref{},
            .weight = weight.ref(),
            .bias = with_bias ? ConstRef(bias.ref()) : ConstRef{},
            .epsilon = 1e-5f,
            .y = y.ref(),
            .mean = kind == NormKind::kLayer ? mean.f32() : nullptr,
            .reciprocal = reciprocal.f32()};
  }
};

TEST_P(NormTest, Forward) {
  for (const NormShape& s : kNormShapes) {
    for (const int variant : {0, 1, 2, 3, 4, 5, 6, 7}) {
      const NormKind kind = variant & 1 ? NormKind::kLayer : NormKind::kRms;
      const NormShape y_shape{s.outer, s.inner, s.columns, s.gap == 0 ? 3 : 0};
      const Granted kernels = granted_for(s);
      Forward expected(dtype(), s, y_shape), actual(expected);
      reference_->norm_forward(expected.arguments(kind, s, y_shape, variant & 2, variant & 4));
      kernels->norm_forward(actual.arguments(kind, s, y_shape, variant & 2, variant & 4));
      const std::string what = fmt::format("{}x{}x{} variant {}", s.outer, s.inner, s.columns, variant);
      expect_near(expected.y, actual.y, within("norm"), "y " + what);
      expect_near(expected.mean, actual.mean, tolerance("norm").f32, "mean " + what);
      expect_near(expected.reciprocal, actual.reciprocal, 1e-5, "reciprocal " + what);
      expect_same_bits(expected.sum, actual.sum, "sum " + what);
    }
  }
}

// Recomputing a norm from the stored sum must give what the forward pass gave.
TEST_P(NormTest, TheStoredSumGivesTheSameBits) {
  const NormShape s{9, 1, 49, 0};
  const Granted kernels = granted_for(s);
  for (const NormKind kind : {NormKind::kRms, NormKind::kLayer}) {
    Forward first(dtype(), s, s);
    kernels->norm_forward(first.arguments(kind, s, s, true, true));
    Forward again(first);
    NormForward a = again.arguments(kind, s, s, false, true);
    a.x = first.sum.ref();
    kernels->norm_forward(a);
    expect_same_bits(first.y, again.y, "y");
    expect_same_bits(first.reciprocal, again.reciprocal, "reciprocal");
  }
}

struct Backward {
  Array x, weight, dy, dresidual, dx, mean, reciprocal, dweight, dbias;
  Backward(DType type, DType dy_type, const NormShape& s, const NormShape& dy_shape,
           const NormShape& dx_shape)
      : x(type, s.size(), 1, 2.0),
        weight(type, s.columns, 2),
        dy(dy_type, dy_shape.size(), 3),
        dresidual(type, dx_shape.size(), 4),
        dx(type, dx_shape.size(), 5),
        mean(DType::kF32, s.rows(), 6, 0.1),
        reciprocal(DType::kF32, s.rows(), 7),
        dweight(DType::kF32, s.columns, 8),
        dbias(DType::kF32, s.columns, 9) {}
  NormBackward arguments(NormKind kind, const NormShape& s, const NormShape& dy_shape,
                         const NormShape& dx_shape, bool residual, bool parameters) {
    const bool layer = kind == NormKind::kLayer;
    return {.kind = kind,
            .x_shape = s.row_shape(),
            .dy_shape = dy_shape.row_shape(),
            .dx_shape = dx_shape.row_shape(),
            .x = x.ref(),
            .weight = weight.ref(),
            .dy = dy.ref(),
            .mean = layer ? mean.f32() : nullptr,
            .reciprocal = reciprocal.f32(),
            .dresidual = residual ? ConstRef(dresidual.ref()) : ConstRef{},
            .dx = dx.ref(),
            .dweight = parameters ? dweight.f32() : nullptr,
            .dbias = parameters && layer ? dbias.f32() : nullptr};
  }
};

TEST_P(NormTest, Backward) {
  for (const NormShape& s : kNormShapes) {
    for (const int variant : {0, 1, 2, 3, 4, 5, 6, 7}) {
      const NormKind kind = variant & 1 ? NormKind::kLayer : NormKind::kRms;
      const DType dy_type = variant & 4 ? DType::kF32 : dtype();
      const NormShape dy_shape{s.outer, s.inner, s.columns, 2}, dx_shape{s.outer, s.inner, s.columns, 1};
      const Granted kernels = granted_for(s);
      Backward expected(dtype(), dy_type, s, dy_shape, dx_shape), actual(expected);
      const bool residual = variant & 2, parameters = variant != 3;
      reference_->norm_backward(expected.arguments(kind, s, dy_shape, dx_shape, residual, parameters));
      kernels->norm_backward(actual.arguments(kind, s, dy_shape, dx_shape, residual, parameters));
      const std::string what = fmt::format("{}x{}x{} variant {}", s.outer, s.inner, s.columns, variant);
      expect_near(expected.dx, actual.dx, within("norm backward"), "dx " + what);
      expect_near(expected.dweight, actual.dweight, within("norm weight"), "dweight " + what);
      expect_near(expected.dbias, actual.dbias, within("norm weight"), "dbias " + what);
    }
  }
}

TEST_P(NormTest, BackwardMayOverwriteDyOrDresidual) {
  const NormShape s{6, 2, 35, 4};
  const Granted kernels = granted_for(s);
  for (const NormKind kind : {NormKind::kRms, NormKind::kLayer}) {
    Backward apart(dtype(), dtype(), s, s, s), over_dy(apart), over_residual(apart);
    kernels->norm_backward(apart.arguments(kind, s, s, s, true, true));
    NormBackward a = over_dy.arguments(kind, s, s, s, true, true);
    a.dx = over_dy.dy.ref();
    kernels->norm_backward(a);
    NormBackward b = over_residual.arguments(kind, s, s, s, true, true);
    b.dx = over_residual.dresidual.ref();
    kernels->norm_backward(b);
    for (int64_t row = 0; row < s.outer; ++row) {
      for (int64_t c = 0; c < s.inner * s.columns; ++c) {
        const int64_t at = row * s.row_shape().outer_stride + c;
        ASSERT_EQ(apart.dx.at(at), over_dy.dy.at(at));
        ASSERT_EQ(apart.dx.at(at), over_residual.dresidual.at(at));
      }
    }
    expect_same_bits(apart.dweight, over_dy.dweight, "dweight");
    expect_same_bits(apart.dweight, over_residual.dweight, "dweight");
  }
}

TRAINER_OP_CASES(NormTest);

}  // namespace
}  // namespace trainer
