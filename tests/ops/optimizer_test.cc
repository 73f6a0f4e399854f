#include <cmath>

#include "ops/op_test.h"

namespace trainer {
namespace {

class OptimizerTest : public OpTest {};

struct State {
  Array master, moment1, moment2, working, gradient;
  State(DType working_type, int64_t count)
      : master(DType::kF32, count, 1),
        moment1(DType::kF32, count, 2, 0.1),
        moment2(DType::kF32, count, 3, 0.1),
        working(working_type, count, 4),
        gradient(DType::kF32, count, 5, 100.0) {
    for (int64_t i = 0; i < count; ++i) moment2.set(i, std::abs(moment2.at(i)));
  }
  AdamW arguments(int64_t step) {
    return {.count = master.size(),
            .master = master.f32(),
            .moment1 = moment1.f32(),
            .moment2 = moment2.f32(),
            .working = working.ref(),
            .gradient = gradient.f32(),
            .gradient_scale = 0.01f,
            .learning_rate = 0.02f,
            .beta1 = 0.9f,
            .beta2 = 0.95f,
            .epsilon = 1e-8f,
            .weight_decay = 0.1f,
            .step = step};
  }
};

TEST_P(OptimizerTest, AdamWAgainstDoublePrecision) {
  const Granted kernels = granted({});
  for (const int64_t count : {1, 3, 17, 65, 20003}) {
    State expected(dtype(), count), actual(expected);
    for (const int64_t step : {1, 2, 3, 1000}) {
      reference_->adamw(expected.arguments(step));
      kernels->adamw(actual.arguments(step));
    }
    const std::string what = fmt::format(" of {}", count);
    expect_near(expected.master, actual.master, tolerance("adamw").f32, "master" + what);
    expect_near(expected.moment1, actual.moment1, tolerance("adamw").f32, "moment1" + what);
    expect_near(expected.moment2, actual.moment2, tolerance("adamw").f32, "moment2" + what);
    expect_near(expected.working, actual.working, within("adamw"), "working" + what);
    for (int64_t i = 0; i < count; ++i) {
      Array rounded(dtype(), 1, 0);
      rounded.set(0, actual.master.at(i));
      ASSERT_EQ(rounded.at(0), actual.working.at(i)) << "the working copy is the rounded master";
    }
  }
}

TEST_P(OptimizerTest, WorkingCopyMayBeAbsentOrTheMaster) {
  const Granted kernels = granted({});
  State with(dtype(), 77), without(with), same(with);
  kernels->adamw(with.arguments(1));
  AdamW a = without.arguments(1);
  a.working = {};
  kernels->adamw(a);
  AdamW b = same.arguments(1);
  b.working = same.master.ref();
  kernels->adamw(b);
  expect_same_bits(with.master, without.master, "master without a working copy");
  expect_same_bits(with.master, same.master, "master that is the working copy");
  expect_same_bits(State(dtype(), 77).working, without.working, "an absent working copy");
}

// One update of a tensor in three pieces is one step, and a later step counts on from it: parameter 1,
// gradient 1, rate 0.1 go to 0.9, 0.8, 0.7, 0.6.
TEST_P(OptimizerTest, BiasCorrectionFollowsTheTrainingStep) {
  const Granted kernels = granted({});
  const int64_t count = 51;
  Array master = Array::filled(DType::kF32, count, 1.0), gradient(master);
  Array moment1 = Array::filled(DType::kF32, count, 0.0), moment2(moment1);
  for (int64_t step = 1; step <= 4; ++step) {
    for (const int64_t begin : {0, 17, 34}) {
      kernels->adamw({.count = 17,
                      .master = master.f32() + begin,
                      .moment1 = moment1.f32() + begin,
                      .moment2 = moment2.f32() + begin,
                      .working = {},
                      .gradient = gradient.f32() + begin,
                      .gradient_scale = 1.0f,
                      .learning_rate = 0.1f,
                      .beta1 = 0.9f,
                      .beta2 = 0.999f,
                      .epsilon = 1e-8f,
                      .weight_decay = 0.0f,
                      .step = step});
    }
    for (int64_t i = 0; i < count; ++i)
      ASSERT_NEAR(master.at(i), 1.0 - 0.1 * static_cast<double>(step), 1e-6);
  }
}

// Without a gradient only weight decay moves a parameter: 1 - rate x decay, or not at all.
TEST_P(OptimizerTest, DecayIsDecoupledFromTheGradient) {
  const Granted kernels = granted({});
  for (const float decay : {0.0f, 0.1f}) {
    Array master = Array::filled(DType::kF32, 5, 1.0), zero = Array::filled(DType::kF32, 5, 0.0);
    Array moment1(zero), moment2(zero);
    kernels->adamw({5,
                    master.f32(),
                    moment1.f32(),
                    moment2.f32(),
                    {},
                    zero.f32(),
                    1.0f,
                    0.1f,
                    0.9f,
                    0.999f,
                    1e-8f,
                    decay,
                    1});
    const Array expected = Array::filled(DType::kF32, 5, decay == 0.0f ? 1.0 : 0.99);
    expect_same_bits(expected, master, "master");
    expect_same_bits(zero, moment1, "moment1");
    expect_same_bits(zero, moment2, "moment2");
  }
}

TEST_P(OptimizerTest, BlockSquaresInDouble) {
  constexpr int64_t kBlock = KernelSet::kNormBlock;
  const Granted kernels = granted({});
  for (const int64_t count : {int64_t{1}, int64_t{17}, kBlock - 1, kBlock, kBlock + 1, 3 * kBlock + 33}) {
    Array x(DType::kF32, count, 1);
    x.set(count / 2, 1e25);  // its square is out of range in single precision
    const size_t blocks = static_cast<size_t>((count + kBlock - 1) / kBlock);
    std::vector<double> expected(blocks + 1, -1.0), actual(expected);
    reference_->block_squares(expected.data(), x.f32(), count);
    kernels->block_squares(actual.data(), x.f32(), count);
    for (size_t b = 0; b < expected.size(); ++b)
      ASSERT_NEAR(expected[b], actual[b], 1e-13 * std::abs(expected[b]));
    x.set(count - 1, NAN);
    kernels->block_squares(actual.data(), x.f32(), count);
    EXPECT_TRUE(std::isnan(actual[blocks - 1]));
  }
}

// A norm must not change when the instruction level does: all levels add the same squares in the same order.
TEST(BlockSquares, SameBitsAtEveryLevel) {
  const Array x(DType::kF32, KernelSet::kNormBlock + 77, 1);
  std::vector<double> first(2), other(2);
  Granted(backends()[0], 1, {})->block_squares(first.data(), x.f32(), x.size());
  for (const Backend& backend : backends()) {
    Granted(backend, 2, {})->block_squares(other.data(), x.f32(), x.size());
    EXPECT_EQ(first, other) << backend.name;
  }
}

TRAINER_OP_CASES(OptimizerTest);

}  // namespace
}  // namespace trainer
