// Every backward of the reference against finite differences of its own forward, so that the oracle of all
// other tests is itself checked.
#include <cmath>
#include <functional>

#include "ops/attention_case.h"
#include "ops/op_test.h"

namespace trainer {
namespace {

constexpr DType kF32 = DType::kF32;

class GradientTest : public ::testing::Test {
 protected:
  // The derivative of objective() along each element of `input` (fp32) must be that element of `gradient`.
  // Central differences at two distances, extrapolated: the error left is of fourth order.
  static void expect_gradient(Array& input, const Array& gradient, const std::function<double()>& objective,
                              const std::string& what) {
    Array numeric = Array::filled(kF32, input.size(), 0.0);
    for (int64_t i = 0; i < input.size(); ++i) {
      const double centre = input.at(i);
      const auto difference = [&](double distance) {
        input.set(i, centre + distance);
        const double above = objective(), up = input.at(i);
        input.set(i, centre - distance);
        const double below = objective(), down = input.at(i);
        input.set(i, centre);
        return (above - below) / (up - down);
      };
      numeric.set(i, (4.0 * difference(0x1p-6) - difference(0x1p-5)) / 3.0);
    }
    expect_near(numeric, gradient, 3e-4, what);
  }

  // The objective whose gradient towards y is `dy`.
  static double weighted_sum(const Array& y, const Array& dy) {
    double sum = 0.0;
    for (int64_t i = 0; i < y.size(); ++i) sum += y.at(i) * dy.at(i);
    return sum;
  }

  std::unique_ptr<KernelSet> reference_ = make_reference_kernels();
};

TEST_F(GradientTest, Linear) {
  const int64_t m = 3, n = 4, k = 5;
  Array x(kF32, m * k, 1), w(kF32, n * k, 2), bias(kF32, n, 3), y(kF32, m * n, 4);
  const Array dy(kF32, m * n, 5);
  const auto objective = [&] {
    reference_->linear_forward(y.ref(), x.ref(), w.ref(), bias.ref(), m, n, k);
    return weighted_sum(y, dy);
  };
  Array dx = Array::filled(kF32, m * k, 0.0), dw = Array::filled(kF32, n * k, 0.0),
        db = Array::filled(kF32, n, 0.0);
  reference_->linear_backward_input(dx.ref(), dy.ref(), w.ref(), m, n, k, false);
  reference_->linear_backward_weight(dw.f32(), dy.ref(), x.ref(), m, n, k, true);
  reference_->bias_backward(db.f32(), dy.ref(), m, n);
  expect_gradient(x, dx, objective, "dx");
  expect_gradient(w, dw, objective, "dw");
  expect_gradient(bias, db, objective, "db");
}

TEST_F(GradientTest, Embedding) {
  const std::vector<int32_t> tokens = {2, 0, 2, 1}, positions = {0, 1, 0, 1};
  Array table(kF32, 3 * 5, 1), places(kF32, 2 * 5, 2), y(kF32, 4 * 5, 3);
  const Array dy(kF32, 4 * 5, 4);
  Array dtable = Array::filled(kF32, 3 * 5, 0.0), dplaces = Array::filled(kF32, 2 * 5, 0.0);
  const auto objective = [&] {
    reference_->embedding_forward(y.ref(), tokens.data(), table.ref(), positions.data(), places.ref(), 4, 5);
    return weighted_sum(y, dy);
  };
  reference_->embedding_backward(dtable.f32(), tokens.data(), dplaces.f32(), positions.data(), dy.ref(), 4,
                                 5);
  expect_gradient(table, dtable, objective, "dtable");
  expect_gradient(places, dplaces, objective, "dposition");
}

TEST_F(GradientTest, NormOfASumWithResidual) {
  const RowShape shape{2, 2, 7, 17};
  const int64_t size = 2 * 17, rows = 4;
  for (const NormKind kind : {NormKind::kRms, NormKind::kLayer}) {
    Array x(kF32, size, 1), delta(kF32, size, 2), sum(kF32, size, 3), weight(kF32, 7, 4), bias(kF32, 7, 5);
    Array y = Array::filled(kF32, size, 0.0), mean(kF32, rows, 6), reciprocal(kF32, rows, 7);
    const Array dy(kF32, size, 8), dresidual(kF32, size, 9);
    // The residual stream goes on beside the norm: its gradient joins that of the norm's input.
    const auto objective = [&] {
      reference_->norm_forward({kind, shape, shape, x.ref(), delta.ref(), sum.ref(), weight.ref(), bias.ref(),
                                1e-5f, y.ref(), mean.f32(), reciprocal.f32()});
      double residual = 0.0;
      for (int64_t i = 0; i < size; ++i) residual += i % 17 < 14 ? sum.at(i) * dresidual.at(i) : 0.0;
      return weighted_sum(y, dy) + residual;
    };
    objective();
    Array dx = Array::filled(kF32, size, 0.0), dweight = Array::filled(kF32, 7, 0.0), dbias(dweight);
    reference_->norm_backward({kind, shape, shape, shape, sum.ref(), weight.ref(), dy.ref(), mean.f32(),
                               reciprocal.f32(), dresidual.ref(), dx.ref(), dweight.f32(), dbias.f32()});
    expect_gradient(x, dx, objective, "dx");
    expect_gradient(delta, dx, objective, "ddelta");
    expect_gradient(weight, dweight, objective, "dweight");
    expect_gradient(bias, dbias, objective, "dbias");
  }
}

TEST_F(GradientTest, RopeInverseIsTheBackward) {
  const int64_t tokens = 3, heads = 2, head_dim = 6, width = heads * head_dim;
  const std::vector<int32_t> positions = {4, 0, 2};
  Array cosine(kF32, 5 * head_dim / 2, 1), sine(cosine), in(kF32, tokens * width, 2), out(in), din(in);
  for (int64_t i = 0; i < cosine.size(); ++i) {
    const double angle = 0.7 * static_cast<double>(i);
    cosine.set(i, std::cos(angle));
    sine.set(i, std::sin(angle));
  }
  const Array dout(kF32, tokens * width, 3);
  RopeArguments a{tokens, heads, head_dim, width, width, positions.data(), cosine.f32(), sine.f32(), true};
  reference_->rope(din.ref(), dout.ref(), a);
  a.inverse = false;
  expect_gradient(
      in, din,
      [&] {
        reference_->rope(out.ref(), in.ref(), a);
        return weighted_sum(out, dout);
      },
      "rope");
}

TEST_F(GradientTest, Activations) {
  const int64_t tokens = 3, ffn = 7;
  Array gate_up(kF32, 2 * tokens * ffn, 1, 2.0), y(kF32, tokens * ffn, 2), dgate_up(gate_up);
  const Array dy(kF32, tokens * ffn, 3);
  reference_->swiglu_backward(dgate_up.ref(), dy.ref(), gate_up.ref(), tokens, ffn);
  expect_gradient(
      gate_up, dgate_up,
      [&] {
        reference_->swiglu_forward(y.ref(), gate_up.ref(), tokens, ffn);
        return weighted_sum(y, dy);
      },
      "swiglu");
  for (const bool exact : {false, true}) {
    Array x(kF32, tokens * ffn, 4, 2.0), dx(x);
    reference_->gelu_backward(dx.ref(), dy.ref(), x.ref(), x.size(), exact);
    expect_gradient(
        x, dx,
        [&] {
          reference_->gelu_forward(y.ref(), x.ref(), x.size(), exact);
          return weighted_sum(y, dy);
        },
        exact ? "gelu, erf" : "gelu, tanh");
  }
}

TEST_F(GradientTest, AttentionWithGroupedQueriesDocumentsAndOffset) {
  const std::vector<int32_t> starts = {0, 3, 9, 13, 16};
  const AttentionShape s{.batch = 2,
                         .query_length = 5,
                         .key_length = 8,
                         .query_offset = 3,
                         .heads = 4,
                         .kv_heads = 2,
                         .head_dim = 3,
                         .q_stride = 13,
                         .k_stride = 7,
                         .v_stride = 6,
                         .key_rows = 9,
                         .scale = 0.6f,
                         .document_starts = starts};
  AttentionCase a(kF32, s);
  // The gaps of a strided gradient stay what they were: zero, as finite differences find them.
  const auto zero = [&](Array& array) {
    reference_->fill_zero(array.ref().data, static_cast<size_t>(array.size()) * 4);
  };
  zero(a.dq);
  zero(a.dk);
  zero(a.dv);
  const auto objective = [&] {
    a.forward(*reference_, s);
    return weighted_sum(a.out, a.dout);
  };
  objective();
  a.backward(*reference_, s);
  expect_gradient(a.q, a.dq, objective, "dq");
  // dk and dv are contiguous, k and v are not.
  const auto strided = [&](const Array& contiguous, int64_t stride) {
    const int64_t width = s.kv_heads * s.head_dim;
    Array wide = Array::filled(kF32, s.batch * s.key_rows * stride, 0.0);
    for (int64_t i = 0; i < contiguous.size(); ++i)
      wide.set(i / width * stride + i % width, contiguous.at(i));
    return wide;
  };
  expect_gradient(a.k, strided(a.dk, s.k_stride), objective, "dk");
  expect_gradient(a.v, strided(a.dv, s.v_stride), objective, "dv");
}

TEST_F(GradientTest, Classifier) {
  const int64_t tokens = 4, hidden = 5, vocabulary = 6;
  const std::vector<int32_t> labels = {5, -100, 0, 2};
  Array x(kF32, tokens * hidden, 1), weight(kF32, vocabulary * hidden, 2);
  Array dx(x), dweight = Array::filled(kF32, weight.size(), 0.0);
  Classifier a{tokens,        hidden,   vocabulary,    x.ref(), weight.ref(),
               labels.data(), dx.ref(), dweight.f32(), nullptr};
  reference_->classifier(a);
  a.dx = {};
  a.dweight = nullptr;
  const auto objective = [&] { return reference_->classifier(a).loss_sum; };
  expect_gradient(x, dx, objective, "dx");
  expect_gradient(weight, dweight, objective, "dweight");
}

}  // namespace
}  // namespace trainer
