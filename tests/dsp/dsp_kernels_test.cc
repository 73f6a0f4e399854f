// The simulated cluster as kernels, against the reference; fp16 has 11 bits, so results are near, not equal.
#include "dsp/dsp_kernels.h"

#include <gmock/gmock.h>

#include <cmath>

#include "base/error.h"
#include "base/label.h"
#include "ops/attention_case.h"

namespace trainer {
namespace {

using ::testing::HasSubstr;

constexpr double kNear = 1e-2;  // of the element or the root mean square; sums of products rounded to fp16

// Parallel arrays for the reference and for the cluster.
struct LinearCase {
  int64_t m, n, k;
  Array x, w, bias, dy, y, dx, dw;
  LinearCase(int64_t m, int64_t n, int64_t k)
      : m(m),
        n(n),
        k(k),
        x(DType::kF32, m * k, 1),
        w(DType::kF32, n * k, 2, 0.2),
        bias(DType::kF32, n, 3),
        dy(DType::kF32, m * n, 4, 0.1),
        y(DType::kF32, m * n, 5),
        dx(DType::kF32, m * k, 6),
        dw(DType::kF32, n * k, 7) {}
  void run(KernelSet& kernels) {
    kernels.linear_forward(y.ref(), x.ref(), w.ref(), bias.ref(), m, n, k);
    kernels.linear_backward_input(dx.ref(), dy.ref(), w.ref(), m, n, k, true);
    kernels.linear_backward_weight(dw.f32(), dy.ref(), x.ref(), m, n, k, true);
  }
};

TEST(DspKernels, LinearLayersOfAnyShape) {
  const auto reference = make_reference_kernels();
  for (const auto& [m, n, k] : {std::array<int64_t, 3>{32, 48, 64}, {7, 5, 3}, {50, 33, 70}}) {
    const std::string what = fmt::format("{} x {} x {}", m, n, k);
    DspKernels kernels;
    LinearCase want(m, n, k), got(want);
    want.run(*reference);
    got.run(kernels);
    expect_near(want.y, got.y, kNear, "y " + what);
    expect_near(want.dx, got.dx, kNear, "dx " + what);
    expect_near(want.dw, got.dw, kNear, "dw " + what);
    EXPECT_FALSE(want.y.same_bits(got.y)) << "computed in fp16";
    for (const char* operation : {"linear forward", "bias forward", "linear backward, input", "add",
                                  "linear backward, weight", "weight gradient sums"}) {
      EXPECT_EQ(kernels.counts()[operation].calls, 1) << operation;
      EXPECT_GT(kernels.counts()[operation].cycles, 0) << operation;
    }
  }
}

TEST(DspKernels, AProductCountsAsItsProgramDoes) {
  DspKernels kernels(false);
  const dsp::GemmProblem problem{.m = 2048, .k = 4096, .n = 4096};
  kernels.linear_forward({}, {}, {}, {}, problem.m, problem.n, problem.k);
  const dsp::GemmResult alone =
      run_gemm(kernels.machine(), problem, search_gemm_tile(kernels.machine(), problem));
  EXPECT_EQ(kernels.cycles(), alone.count.cycles);
  EXPECT_EQ(kernels.counts()["linear forward"].ddr_bytes, alone.count.ddr_bytes);
}

TEST(DspKernels, AttentionOfWholeSequences) {
  const auto reference = make_reference_kernels();
  for (const AttentionShape& s : attention_shapes()) {
    if (s.query_offset != 0) continue;
    DspKernels kernels;
    AttentionCase want(DType::kF32, s);
    want.forward(*reference, s);
    AttentionCase got(want);
    got.forward(kernels, s);
    EXPECT_TRUE(want.out.same_bits(got.out)) << "forward is the reference's";
    want.backward(*reference, s);
    got.backward(kernels, s);
    expect_near(want.dq, got.dq, kNear, "dq " + describe(s));
    expect_near(want.dk, got.dk, kNear, "dk " + describe(s));
    expect_near(want.dv, got.dv, kNear, "dv " + describe(s));
    EXPECT_EQ(kernels.counts()["attention backward"].calls, s.batch * s.heads);
    EXPECT_EQ(kernels.counts()["attention forward"].calls, s.batch * s.heads);
  }
}

TEST(DspKernels, ClassifierOverSeveralChunks) {
  const auto reference = make_reference_kernels();
  constexpr int64_t kTokens = 1100, kHidden = 20, kWords = 17;
  const Array x(DType::kF32, kTokens * kHidden, 1), weight(DType::kF32, kWords * kHidden, 2, 0.5);
  std::vector<int32_t> labels;
  for (int64_t t = 0; t < kTokens; ++t)
    labels.push_back(t % 5 == 3 ? -100 : static_cast<int32_t>(t * 7 % kWords));
  struct Results {
    Array dx{DType::kF32, kTokens*kHidden, 3}, dweight{DType::kF32, kWords*kHidden, 4},
        losses{DType::kF32, kTokens, 5};
    ClassifierResult result;
  } want, got;
  const auto run = [&](KernelSet& kernels, Results& r, bool accumulate) {
    r.result = kernels.classifier({.tokens = kTokens,
                                   .hidden = kHidden,
                                   .vocabulary = kWords,
                                   .x = x.ref(),
                                   .weight = weight.ref(),
                                   .labels = labels.data(),
                                   .dx = r.dx.ref(),
                                   .dweight = r.dweight.f32(),
                                   .token_losses = r.losses.f32(),
                                   .accumulate = accumulate});
  };
  DspKernels kernels;
  run(*reference, want, true);
  run(kernels, got, true);
  EXPECT_EQ(want.result.valid_tokens, got.result.valid_tokens);
  EXPECT_NEAR(want.result.loss_sum, got.result.loss_sum, 1e-3 * want.result.loss_sum);
  expect_near(want.losses, got.losses, kNear, "losses");
  expect_near(want.dx, got.dx, kNear, "dx");
  expect_near(want.dweight, got.dweight, kNear, "dweight");
  EXPECT_EQ(kernels.counts()["classifier forward"].calls, 2);
  got.dweight.set(5, NAN);
  run(*reference, want, false);
  run(kernels, got, false);
  expect_near(want.dweight, got.dweight, kNear, "written dweight");
}

TEST(DspKernels, AFirstGradientIsWrittenToZeros) {
  DspKernels kernels;
  LinearCase from(7, 5, 3);
  Array written = Array::filled(DType::kF32, 15, NAN), added = Array::filled(DType::kF32, 15, 0.0);
  kernels.linear_backward_weight(added.f32(), from.dy.ref(), from.x.ref(), 7, 5, 3, true);
  EXPECT_EQ(kernels.counts()["zero"].calls, 0);
  kernels.linear_backward_weight(written.f32(), from.dy.ref(), from.x.ref(), 7, 5, 3, false);
  EXPECT_EQ(kernels.counts()["zero"].calls, 1);
  EXPECT_TRUE(written.same_bits(added));
}

TEST(DspKernels, WithoutValuesTheyCountTheSameAndTouchNothing) {
  DspKernels counting(false), computing;
  LinearCase arrays(9, 20, 40);
  arrays.run(computing);
  const LinearCase before(arrays);
  arrays.run(counting);
  EXPECT_TRUE(arrays.y.same_bits(before.y));
  counting.attention_backward({}, nullptr, nullptr, {}, {}, nullptr, {}, {}, {}, attention_shapes().front());
  AdamW update{};
  update.count = 1000;
  counting.adamw(update);
  counting.fill_zero(nullptr, 5000);
  EXPECT_EQ(counting.counts()["linear forward"], computing.counts()["linear forward"]);
  EXPECT_EQ(counting.counts()["optimizer"].ddr_bytes, 30 * 1000);
  EXPECT_EQ(counting.counts()["zero"].ddr_bytes, 5000);
}

// A pass of 1024 x 256 halves in and out moves 1 MiB at 30 GB/s; one with many instructions waits for those.
TEST(DspKernels, APassTakesTheLongerOfItsBytesAndItsInstructions) {
  const dsp::Machine machine;
  dsp::Pass pass{.rows = 1024, .columns = 256, .operations = 1, .ddr_bytes = 1 << 20};
  const double cycles = (1 << 20) / 30e9 * machine.clock_hz();
  EXPECT_NEAR(static_cast<double>(count_pass(machine, pass).cycles), cycles + machine.ddr_start_cycles, 1);
  pass.operations = 10000;  // of 1024 vectors on 24 DSPs: 43 each
  EXPECT_EQ(count_pass(machine, pass).cycles, machine.ddr_start_cycles + 43 * 10000 + machine.vector_latency);
}

TEST(DspKernels, SayWhatTheyCannotDoBeforeAnyWork) {
  const DspKernels kernels;
  const auto refusal = [&](const WorkspaceShape& shape) -> std::string {
    try {
      kernels.workspace_bytes(shape);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  const WorkspaceShape shape{.tokens = 64, .sequence = 64, .heads = 2, .head_dim = 64};
  EXPECT_EQ(refusal(shape), "");
  WorkspaceShape other = shape;
  other.dtype = DType::kBF16;
  EXPECT_THAT(refusal(other), HasSubstr("it cannot compute in bf16"));
  other = shape;
  other.tensor_ranks = 2;
  EXPECT_THAT(refusal(other), HasSubstr("cannot share a classifier"));
  other = shape;
  other.sequence = 1 << 14;  // gradients of so many keys do not fit the cluster's shared memory
  other.head_dim = 128;
  EXPECT_THAT(refusal(other), HasSubstr("no tile of attention over 16384 positions of 128 fits"));
}

TEST(DspKernels, AWrongLabelNamesItsToken) {
  Array x(DType::kF32, 4 * 8, 1), weight(DType::kF32, 16 * 8, 2);
  const std::vector<int32_t> labels{3, kIgnoredLabel, 16, 0};
  DspKernels kernels;
  Classifier a{.tokens = 4,
               .hidden = 8,
               .vocabulary = 16,
               .x = x.ref(),
               .weight = weight.ref(),
               .labels = labels.data(),
               .dx = {},
               .dweight = nullptr,
               .token_losses = nullptr};
  try {
    kernels.classifier(a);
    ADD_FAILURE() << "taken";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("label 16 of token 2 is outside the vocabulary of 16"));
  }
}

TEST(DspKernels, BeyondTheRangeOfHalvesIsInfinite) {
  DspKernels kernels;
  const Array x = Array::filled(DType::kF32, 16, 100), w = Array::filled(DType::kF32, 16, 100);
  Array y = Array::filled(DType::kF32, 1, 0);
  kernels.linear_forward(y.ref(), x.ref(), w.ref(), {}, 1, 1, 16);
  EXPECT_TRUE(std::isinf(y.at(0)));
}

}  // namespace
}  // namespace trainer
