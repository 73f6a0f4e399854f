#include <cmath>

#include "ops/attention_case.h"
#include "ops/op_test.h"

namespace trainer {
namespace {

class AttentionTest : public OpTest {
 protected:
  Granted granted_for(const AttentionShape& s, int threads = 2) const {
    return granted({.tokens = s.batch * s.query_length,
                    .hidden = s.heads * s.head_dim,
                    .sequence = s.key_length,
                    .heads = s.heads,
                    .head_dim = s.head_dim,
                    .positions = s.batch * s.key_rows},
                   threads);
  }
};

TEST_P(AttentionTest, Forward) {
  for (const AttentionShape& s : attention_shapes()) {
    const Granted kernels = granted_for(s);
    AttentionCase expected(dtype(), s), actual(expected);
    expected.forward(*reference_, s);
    actual.forward(*kernels, s);
    expect_near(expected.out, actual.out, within("attention"), "out " + describe(s));
    expect_near(expected.log_sum_exp, actual.log_sum_exp, 1e-5, "log_sum_exp " + describe(s));
  }
}

TEST_P(AttentionTest, BackwardWritesDqAndAddsToDkDv) {
  for (const AttentionShape& s : attention_shapes()) {
    const Granted kernels = granted_for(s);
    AttentionCase expected(dtype(), s);
    expected.forward(*reference_, s);
    AttentionCase actual(expected);
    expected.backward(*reference_, s);
    actual.backward(*kernels, s);
    expect_near(expected.dq, actual.dq, within("attention backward"), "dq " + describe(s));
    expect_near(expected.dk, actual.dk, within("attention keys"), "dk " + describe(s));
    expect_near(expected.dv, actual.dv, within("attention keys"), "dv " + describe(s));
  }
}

// Consecutive heads share a key/value head: the same as giving each head a copy of its own.
TEST_P(AttentionTest, GroupedHeadsShareTheirKeys) {
  AttentionShape grouped = attention_shapes().front();
  grouped.k_stride = grouped.v_stride = grouped.kv_heads * grouped.head_dim;
  AttentionShape apart = grouped;
  apart.kv_heads = apart.heads;
  apart.k_stride = apart.v_stride = apart.heads * apart.head_dim;
  AttentionCase shared(dtype(), grouped), copies(dtype(), apart);
  for (int64_t i = 0; i < copies.k.size(); ++i) {
    const int64_t token = i / apart.k_stride, head = i % apart.k_stride / apart.head_dim;
    const int64_t from = token * grouped.k_stride + head / 2 * grouped.head_dim + i % apart.head_dim;
    copies.k.set(i, shared.k.at(from));
    copies.v.set(i, shared.v.at(from));
  }
  shared.forward(*granted_for(grouped), grouped);
  copies.forward(*granted_for(apart), apart);
  expect_near(copies.out, shared.out, within("attention"), "out");
  expect_near(copies.log_sum_exp, shared.log_sum_exp, 1e-5, "log_sum_exp");
}

// Equal scores: each query averages the values of its own document that it may see, and no others.
TEST_P(AttentionTest, PackedDocumentsDoNotSeeEachOther) {
  const std::vector<int32_t> starts = {0, 3};
  AttentionShape s{.batch = 1,
                   .query_length = 7,
                   .key_length = 7,
                   .query_offset = 0,
                   .heads = 1,
                   .kv_heads = 1,
                   .head_dim = 2,
                   .q_stride = 2,
                   .k_stride = 2,
                   .v_stride = 2,
                   .key_rows = 7,
                   .scale = 1.0f,
                   .document_starts = starts};
  const Array q = Array::filled(dtype(), 14, 0.0), k(dtype(), 14, 1);
  Array v = Array::filled(dtype(), 14, 0.0), out(dtype(), 14, 2), log_sum_exp(DType::kF32, 7, 3);
  const double values[] = {1, 2, 3, 10, 20, 30, 40}, apart[] = {1, 1.5, 2, 10, 15, 20, 25};
  const double together[] = {1, 1.5, 2, 4, 7.2, 11, 106.0 / 7};
  for (int64_t i = 0; i < 7; ++i) v.set(2 * i, values[i]);
  const Granted kernels = granted_for(s);
  kernels->attention_forward(out.ref(), log_sum_exp.f32(), q.ref(), k.ref(), v.ref(), s);
  for (int64_t i = 0; i < 7; ++i) EXPECT_NEAR(out.at(2 * i), apart[i], 1e-5 * apart[i]) << i;
  s.document_starts = {};
  kernels->attention_forward(out.ref(), log_sum_exp.f32(), q.ref(), k.ref(), v.ref(), s);
  for (int64_t i = 0; i < 7; ++i)
    EXPECT_NEAR(out.at(2 * i), together[i], within("attention") * together[i]) << i;
}

// What a query may not see changes nothing: large keys and values of another document, and whatever lies
// behind the last key.
TEST_P(AttentionTest, HiddenKeysChangeNothing) {
  const std::vector<int32_t> starts = {0, 40};
  AttentionShape s = attention_shapes().front();
  s.batch = 1;
  s.query_length = s.key_length = 80;
  s.key_rows = 83;
  s.query_offset = 0;
  s.document_starts = starts;
  const Granted kernels = granted_for(s);
  AttentionCase clean(dtype(), s), spoilt(clean);
  for (int64_t j = 40; j < s.key_rows; ++j) {
    const double value = j < s.key_length ? 1e4 : NAN;
    for (int64_t c = 0; c < s.k_stride; ++c) spoilt.k.set(j * s.k_stride + c, value);
    for (int64_t c = 0; c < s.v_stride; ++c) spoilt.v.set(j * s.v_stride + c, value);
  }
  for (AttentionCase* attention : {&clean, &spoilt}) {
    attention->forward(*kernels, s);
    attention->backward(*kernels, s);
  }
  for (int64_t i = 0; i < 40; ++i) {
    const int64_t out_width = s.heads * s.head_dim, key_width = s.kv_heads * s.head_dim;
    for (int64_t c = 0; c < out_width; ++c)
      ASSERT_EQ(clean.out.at(i * out_width + c), spoilt.out.at(i * out_width + c));
    for (int64_t c = 0; c < out_width; ++c)
      ASSERT_EQ(clean.dq.at(i * s.q_stride + c), spoilt.dq.at(i * s.q_stride + c));
    for (int64_t c = 0; c < key_width; ++c)
      ASSERT_EQ(clean.dk.at(i * key_width + c), spoilt.dk.at(i * key_width + c));
  }
  for (int64_t e = 0; e < spoilt.out.size(); ++e) ASSERT_TRUE(std::isfinite(spoilt.out.at(e))) << e;
}

// Queries in segments, each against all keys so far, equal the whole sequence; dk and dv add up over the
// segments.
TEST_P(AttentionTest, SegmentsEqualTheWholeSequence) {
  const int64_t length = 75, cut = 33;
  AttentionShape whole = attention_shapes().front();
  whole.batch = 1;
  whole.query_length = whole.key_length = whole.key_rows = length;
  whole.query_offset = 0;
  const Granted kernels = granted_for(whole);
  AttentionCase once(dtype(), whole), pieces(once);
  once.forward(*kernels, whole);
  once.backward(*kernels, whole);
  const int64_t width = whole.heads * whole.head_dim;
  const auto segment = [&](int64_t begin, int64_t end) {
    AttentionShape s = whole;
    s.query_length = end - begin;
    s.query_offset = begin;
    s.key_length = end;
    Array statistics(DType::kF32, s.heads * s.query_length, 9);
    const Ref q = pieces.q.ref().at(begin * s.q_stride), out = pieces.out.ref().at(begin * width);
    kernels->attention_forward(out, statistics.f32(), q, pieces.k.ref(), pieces.v.ref(), s);
    kernels->attention_backward(pieces.dq.ref().at(begin * s.q_stride), pieces.dk.f32(), pieces.dv.f32(),
                                pieces.dout.ref().at(begin * width), out, statistics.f32(), q, pieces.k.ref(),
                                pieces.v.ref(), s);
  };
  segment(cut, length);
  segment(0, cut);
  expect_near(once.out, pieces.out, within("attention"), "out");
  expect_near(once.dq, pieces.dq, within("attention backward"), "dq");
  expect_near(once.dk, pieces.dk, within("attention keys"), "dk");
  expect_near(once.dv, pieces.dv, within("attention keys"), "dv");
}

// Scores far beyond the range of an exponential.
TEST_P(AttentionTest, LargeScores) {
  AttentionShape s = attention_shapes().front();
  s.scale = 40.0f;
  const Granted kernels = granted_for(s);
  AttentionCase expected(dtype(), s), actual(expected);
  expected.forward(*reference_, s);
  actual.forward(*kernels, s);
  expect_near(expected.out, actual.out, std::max(2e-3, within("attention")), "out");
  expect_near(expected.log_sum_exp, actual.log_sum_exp, 1e-5, "log_sum_exp");
}

TRAINER_OP_CASES(AttentionTest);

}  // namespace
}  // namespace trainer
