// Attention across its blocks: 64 queries, spans of up to 512, blocks of 128 keys. Documents that begin and
// end at their borders, segments, few heads on many threads.
#include <numeric>

#include "ops/attention_case.h"
#include "ops/op_test.h"
#include "support/attention_shape.h"

namespace trainer {
namespace {

class AttentionBlocksTest : public OpTest {
 protected:
  static AttentionShape shape(int64_t batch, int64_t length, int64_t heads, int64_t kv_heads,
                              int64_t head_dim, std::span<const int32_t> starts = {}) {
    AttentionShape s = whole_sequences(batch, length, heads, kv_heads, head_dim);
    s.scale = 0.25f;
    s.document_starts = starts;
    return s;
  }
  Granted granted_for(const AttentionShape& s, int threads = 2) const {
    return granted({.tokens = s.batch * s.query_length,
                    .sequence = s.key_length,
                    .heads = s.heads,
                    .head_dim = s.head_dim},
                   threads);
  }
  void expect_reference(const AttentionShape& s) const {
    const std::string what = describe(s);
    AttentionCase expected(dtype(), s), actual(dtype(), s);
    const Granted kernels = granted_for(s);
    expected.forward(*reference_, s);
    actual.forward(*kernels, s);
    expect_near(expected.out, actual.out, within("attention"), "out " + what);
    expect_near(expected.log_sum_exp, actual.log_sum_exp, 1e-5, "log_sum_exp " + what);
    expected.backward(*reference_, s);
    // The same forward results: their rounding is not this test's matter.
    std::memcpy(actual.out.ref().data, expected.out.ref().data,
                static_cast<size_t>(expected.out.size()) * size_of(dtype()));
    actual.backward(*kernels, s);
    expect_near(expected.dq, actual.dq, within("attention backward"), "dq " + what);
    expect_near(expected.dk, actual.dk, 4 * within("attention keys"), "dk " + what);
    expect_near(expected.dv, actual.dv, 4 * within("attention keys"), "dv " + what);
  }
};

TEST_P(AttentionBlocksTest, LengthsAtBlockBorders) {
  for (const int64_t length : {63, 64, 65, 127, 128, 129, 255, 256, 257, 300}) {
    expect_reference(shape(1, length, 1, 1, 8));
  }
  // With as many heads the spans of two threads are as long as they get.
  for (const int64_t length : {511, 512, 513, 580}) expect_reference(shape(1, length, 8, 4, 8));
}

TEST_P(AttentionBlocksTest, DocumentsAtBlockBorders) {
  const std::vector<std::vector<int32_t>> cuts = {{0, 63, 64, 65, 300},
                                                  {0, 127, 128, 129, 300},
                                                  {0, 256, 257, 300, 428, 599},
                                                  {0, 128, 256, 300, 364, 556}};
  for (const std::vector<int32_t>& starts : cuts) expect_reference(shape(2, 300, 2, 1, 8, starts));
  const std::vector<int32_t> around_span = {0, 200, 511, 512, 513};
  expect_reference(shape(1, 580, 8, 4, 8, around_span));
}

TEST_P(AttentionBlocksTest, EveryTokenADocument) {
  std::vector<int32_t> starts(300);
  std::iota(starts.begin(), starts.end(), 0);
  const AttentionShape s = shape(1, 300, 1, 1, 8, starts);
  AttentionCase one(dtype(), s);
  const Array dv_before(one.dv);
  const Granted kernels = granted_for(s);
  one.forward(*kernels, s);
  one.backward(*kernels, s);
  expect_same_bits(one.v, one.out, "a token sees itself alone");
  for (int64_t e = 0; e < one.dq.size(); ++e) {
    ASSERT_NEAR(one.dq.at(e), 0.0, 1e-5) << e;
    ASSERT_NEAR(one.dv.at(e), dv_before.at(e) + one.dout.at(e), 1e-5) << e;
  }
}

TEST_P(AttentionBlocksTest, HeadSizesAroundPanels) {
  for (const int64_t head_dim : {1, 15, 31, 32, 33, 96, 255, 256}) {
    AttentionShape s = shape(1, 70, 2, 2, head_dim);
    s.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    expect_reference(s);
  }
}

TEST_P(AttentionBlocksTest, SegmentsGiveWhatTheWholeSequenceGives) {
  const int64_t length = 333;
  const std::vector<int32_t> starts = {0, 100, 128, 257};
  const AttentionShape whole = shape(1, length, 2, 1, 16, starts);
  AttentionCase at_once(dtype(), whole);
  const Granted kernels = granted_for(whole);
  at_once.forward(*kernels, whole);
  AttentionCase pieces(at_once);
  at_once.backward(*kernels, whole);
  const int64_t row = whole.heads * whole.head_dim;
  int64_t begin = 0;
  for (const int64_t end : {int64_t{90}, int64_t{128}, int64_t{331}, length}) {
    AttentionShape s = whole;
    s.query_offset = begin;
    s.query_length = end - begin;
    s.key_length = end;
    std::vector<float> log_sum_exp(static_cast<size_t>(s.heads * s.query_length));
    kernels->attention_forward(pieces.out.ref().at(begin * row), log_sum_exp.data(),
                               pieces.q.ref().at(begin * row), pieces.k.ref(), pieces.v.ref(), s);
    kernels->attention_backward(pieces.dq.ref().at(begin * row), pieces.dk.f32(), pieces.dv.f32(),
                                pieces.dout.ref().at(begin * row), pieces.out.ref().at(begin * row),
                                log_sum_exp.data(), pieces.q.ref().at(begin * row), pieces.k.ref(),
                                pieces.v.ref(), s);
    begin = end;
  }
  expect_near(at_once.out, pieces.out, within("attention"), "out");
  expect_near(at_once.dq, pieces.dq, within("attention backward"), "dq");
  expect_near(at_once.dk, pieces.dk, 4 * within("attention keys"), "dk");
  expect_near(at_once.dv, pieces.dv, 4 * within("attention keys"), "dv");
}

// One key head: with several threads keys and queries are done apart.
TEST_P(AttentionBlocksTest, BitsDoNotDependOnThreads) {
  const std::vector<int32_t> starts = {0, 40, 400};
  for (const AttentionShape& s : {shape(1, 530, 1, 1, 24, starts), shape(1, 530, 4, 1, 24),
                                  shape(3, 140, 2, 1, 64), shape(1, 300, 5, 5, 10)}) {
    AttentionCase one(dtype(), s);
    const Granted alone = granted_for(s, 1);
    one.forward(*alone, s);
    one.backward(*alone, s);
    for (const int threads : {2, 3, 7}) {
      AttentionCase more(dtype(), s);
      const Granted kernels = granted_for(s, threads);
      more.forward(*kernels, s);
      more.backward(*kernels, s);
      const std::string what = fmt::format("{} on {} threads", describe(s), threads);
      expect_same_bits(one.out, more.out, "out " + what);
      expect_same_bits(one.log_sum_exp, more.log_sum_exp, "log_sum_exp " + what);
      expect_same_bits(one.dq, more.dq, "dq " + what);
      expect_same_bits(one.dk, more.dk, "dk " + what);
      expect_same_bits(one.dv, more.dv, "dv " + what);
    }
  }
}

// Scores far apart: the largest one takes all, earlier sums vanish, nothing overflows.
TEST_P(AttentionBlocksTest, ExtremeScores) {
  AttentionShape s = shape(1, 200, 1, 1, 4);
  s.scale = 300.0f;
  AttentionCase expected(dtype(), s), actual(dtype(), s);
  expected.forward(*reference_, s);
  actual.forward(*granted_for(s), s);
  expect_near(expected.log_sum_exp, actual.log_sum_exp, 1e-5, "log_sum_exp");
  // Two scores near 1000 that are nearly equal differ by their rounding in fp32, 1e-4.
  expect_near(expected.out, actual.out, 2e-3 + within("attention"), "out");
}

TRAINER_HOST_CASES(AttentionBlocksTest);

}  // namespace
}  // namespace trainer
