// Every bit of every result is the same for any number of threads, and from one run to the next. The device
// kernels on the host have orders of blocks and threads instead.
#include <functional>

#include "ops/attention_case.h"
#include "ops/op_test.h"

namespace trainer {
namespace {

class ThreadsTest : public OpTest {
 protected:
  // Runs `operation` on copies of `outputs`, with 1, 2, 3 and again 2 threads.
  void expect_same(const WorkspaceShape& shape, const std::vector<Array>& outputs,
                   const std::function<void(KernelSet&, std::vector<Array>&)>& operation) const {
    std::vector<Array> first = outputs;
    operation(*granted(shape, 1), first);
    for (const int threads : {2, 3, 2}) {
      std::vector<Array> again;
      for (const Array& output : outputs) again.push_back(output);
      operation(*granted(shape, threads), again);
      for (size_t i = 0; i < first.size(); ++i) {
        EXPECT_TRUE(first[i].same_bits(again[i])) << "output " << i << " with " << threads << " threads";
      }
    }
  }
  Array typed(int64_t count, uint64_t seed) const { return Array(dtype(), count, seed); }
  static Array f32(int64_t count, uint64_t seed) { return Array(DType::kF32, count, seed); }
};

TEST_P(ThreadsTest, Linear) {
  struct Shape {
    int64_t m, n, k;
  };
  for (const Shape& s : {Shape{7, 9, 500}, {130, 66, 257}, {1, 300, 40}, {257, 40, 31}}) {
    if (simt() && s.m > 200) continue;
    const Array x = typed(s.m * s.k, 1), w = typed(s.n * s.k, 2), dy = typed(s.m * s.n, 3),
                bias = typed(s.n, 4);
    expect_same({.tokens = s.m, .widest_row = std::max(s.n, s.k)},
                {typed(s.m * s.n, 5), typed(s.m * s.k, 6), f32(s.n * s.k, 7), f32(s.n, 8)},
                [&](KernelSet& kernels, std::vector<Array>& out) {
                  kernels.linear_forward(out[0].ref(), x.ref(), w.ref(), bias.ref(), s.m, s.n, s.k);
                  kernels.linear_backward_input(out[1].ref(), dy.ref(), w.ref(), s.m, s.n, s.k, true);
                  kernels.linear_backward_weight(out[2].f32(), dy.ref(), x.ref(), s.m, s.n, s.k, true);
                  kernels.bias_backward(out[3].f32(), dy.ref(), s.m, s.n);
                });
  }
}

TEST_P(ThreadsTest, Norm) {
  for (const NormKind kind : {NormKind::kRms, NormKind::kLayer}) {
    for (const int64_t rows : {5, 131}) {
      const RowShape shape{rows, 1, 300, 300};
      const Array x = typed(rows * 300, 1), weight = typed(300, 2), dy = typed(rows * 300, 3);
      expect_same(
          {.tokens = rows, .widest_row = 300, .hidden = 300},
          {typed(rows * 300, 4), f32(rows, 5), f32(rows, 6), typed(rows * 300, 7), f32(300, 8), f32(300, 9)},
          [&](KernelSet& kernels, std::vector<Array>& out) {
            kernels.norm_forward({kind,
                                  shape,
                                  shape,
                                  x.ref(),
                                  {},
                                  {},
                                  weight.ref(),
                                  {},
                                  1e-5f,
                                  out[0].ref(),
                                  out[1].f32(),
                                  out[2].f32()});
            kernels.norm_backward({kind,
                                   shape,
                                   shape,
                                   shape,
                                   x.ref(),
                                   weight.ref(),
                                   dy.ref(),
                                   out[1].f32(),
                                   out[2].f32(),
                                   {},
                                   out[3].ref(),
                                   out[4].f32(),
                                   out[5].f32()});
          });
    }
  }
}

TEST_P(ThreadsTest, Pointwise) {
  const int64_t count = 50007;
  const Array x = typed(count, 1), dy = typed(count, 2), gate_up = typed(2 * 231 * 77, 3),
              gradient = f32(count, 4);
  const Array cosine = f32(231 * 38, 5), sine = f32(231 * 38, 6);
  std::vector<int32_t> positions(231);
  for (size_t t = 0; t < positions.size(); ++t) positions[t] = static_cast<int32_t>(t * 37 % 231);
  const RopeArguments rope{231, 2, 76, 154, 154, positions.data(), cosine.f32(), sine.f32(), false};
  const Array moment2 = Array::filled(DType::kF32, count, 0.5);
  expect_same({},
              {typed(count, 1), typed(count, 2), typed(231 * 77, 3), typed(2 * 231 * 77, 4),
               typed(231 * 154, 5), f32(count, 6), f32(count, 7), moment2, typed(count, 8), typed(count, 9)},
              [&](KernelSet& kernels, std::vector<Array>& out) {
                kernels.gelu_forward(out[0].ref(), x.ref(), count, false);
                kernels.gelu_backward(out[1].ref(), dy.ref(), x.ref(), count, true);
                kernels.swiglu_forward(out[2].ref(), gate_up.ref(), 231, 77);
                kernels.swiglu_backward(out[3].ref(), out[2].ref(), gate_up.ref(), 231, 77);
                kernels.rope(out[4].ref(), gate_up.ref(), rope);
                kernels.adamw({count, out[5].f32(), out[6].f32(), out[7].f32(), out[8].ref(), gradient.f32(),
                               0.5f, 0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, 3});
                kernels.add(out[9].ref(), x.ref(), count);
              });
}

TEST_P(ThreadsTest, BlockSquares) {
  const int64_t count = 5 * KernelSet::kNormBlock / 2;
  const Array x = f32(count, 1);
  std::vector<double> first(3), again(3);
  granted({}, 1)->block_squares(first.data(), x.f32(), count);
  for (const int threads : {2, 3, 2}) {
    granted({}, threads)->block_squares(again.data(), x.f32(), count);
    EXPECT_EQ(first, again) << threads << " threads";
  }
}

TEST_P(ThreadsTest, EmbeddingOfRepeatedTokens) {
  const int64_t count = 333, hidden = 200;
  const Array table = typed(10 * hidden, 1), dy = typed(count * hidden, 2);
  std::vector<int32_t> tokens(count);
  for (int64_t t = 0; t < count; ++t) tokens[t] = static_cast<int32_t>(t * t % 10);
  expect_same(
      {}, {typed(count * hidden, 3), f32(10 * hidden, 4)}, [&](KernelSet& kernels, std::vector<Array>& out) {
        kernels.embedding_forward(out[0].ref(), tokens.data(), table.ref(), nullptr, {}, count, hidden);
        kernels.embedding_backward(out[1].f32(), tokens.data(), nullptr, nullptr, dy.ref(), count, hidden);
      });
}

TEST_P(ThreadsTest, Attention) {
  for (const AttentionShape& s : attention_shapes()) {
    if (simt() && s.key_length > 100) continue;
    const AttentionCase before(dtype(), s);
    expect_same({.tokens = s.batch * s.query_length,
                 .hidden = s.heads * s.head_dim,
                 .sequence = s.key_length,
                 .heads = s.heads,
                 .head_dim = s.head_dim,
                 .positions = s.batch * s.key_rows},
                {before.out, before.log_sum_exp, before.dq, before.dk, before.dv},
                [&](KernelSet& kernels, std::vector<Array>& out) {
                  kernels.attention_forward(out[0].ref(), out[1].f32(), before.q.ref(), before.k.ref(),
                                            before.v.ref(), s);
                  kernels.attention_backward(out[2].ref(), out[3].f32(), out[4].f32(), before.dout.ref(),
                                             out[0].ref(), out[1].f32(), before.q.ref(), before.k.ref(),
                                             before.v.ref(), s);
                });
  }
}

TEST_P(ThreadsTest, Classifier) {
  const int64_t tokens = 150, hidden = simt() ? 17 : 48, vocabulary = simt() ? 301 : 3001;
  const Array x = typed(tokens * hidden, 1), weight = typed(vocabulary * hidden, 2);
  std::vector<int32_t> labels(tokens);
  for (int64_t t = 0; t < tokens; ++t)
    labels[t] = t % 7 == 2 ? -100 : static_cast<int32_t>(t * 19 % vocabulary);
  std::vector<double> losses;
  expect_same({.tokens = tokens, .widest_row = hidden, .hidden = hidden, .vocabulary = vocabulary},
              {typed(tokens * hidden, 3), f32(vocabulary * hidden, 4), f32(tokens, 5)},
              [&](KernelSet& kernels, std::vector<Array>& out) {
                const ClassifierResult result =
                    kernels.classifier({tokens, hidden, vocabulary, x.ref(), weight.ref(), labels.data(),
                                        out[0].ref(), out[1].f32(), out[2].f32()});
                losses.push_back(result.loss_sum);
              });
  for (const double loss : losses) EXPECT_EQ(losses[0], loss);
}

TRAINER_OP_CASES(ThreadsTest);

}  // namespace
}  // namespace trainer
