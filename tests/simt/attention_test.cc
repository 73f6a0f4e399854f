// The device's flash attention on the simulated device, against the reference.
#include "cuda/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "ops/attention_case.h"

namespace trainer::simt {
namespace {

// For each position the first of its document, as the kernels take it.
std::vector<int32_t> first_positions(const AttentionShape& s) {
  std::vector<int32_t> first(static_cast<size_t>(s.batch * s.key_rows));
  for (int32_t position = 0; position < static_cast<int32_t>(first.size()); ++position) {
    first[static_cast<size_t>(position)] =
        *(std::upper_bound(s.document_starts.begin(), s.document_starts.end(), position) - 1);
  }
  return first;
}

class DeviceAttention : public ::testing::TestWithParam<DType> {
 protected:
  // Of bf16, weights and slopes are rounded before their products: single elements may be a few units of the
  // last place of a typical one off, all together less than one.
  struct Within {
    double out, gradients, together;
  };
  Within within() const {
    return GetParam() == DType::kF32 ? Within{1e-5, 5e-5, 5e-6} : Within{0x1p-7, 0x1p-5, 0x1p-8};
  }
  void expect_close(const Array& expected, const Array& actual, double largest,
                    const std::string& what) const {
    expect_near(expected, actual, largest, what);
    double difference = 0.0, square = 0.0;
    for (int64_t e = 0; e < expected.size(); ++e) {
      difference += (actual.at(e) - expected.at(e)) * (actual.at(e) - expected.at(e));
      square += expected.at(e) * expected.at(e);
    }
    EXPECT_LE(std::sqrt(difference), within().together * std::sqrt(square)) << what;
  }
  static constexpr double kWithinStatistic = 1e-5;

  static void forward(AttentionCase& a, const AttentionShape& s, Stream stream = nullptr) {
    const std::vector<int32_t> first =
        s.document_starts.empty() ? std::vector<int32_t>() : first_positions(s);
    attention_forward(a.out.ref(), a.log_sum_exp.f32(), a.q.ref(), a.k.ref(), a.v.ref(), s,
                      first.empty() ? nullptr : first.data(), stream);
  }
  static void backward(AttentionCase& a, const AttentionShape& s, Stream stream = nullptr) {
    const std::vector<int32_t> first =
        s.document_starts.empty() ? std::vector<int32_t>() : first_positions(s);
    Array workspace =
        Array::filled(DType::kF32, static_cast<int64_t>(attention_backward_workspace(s) / 4), NAN);
    attention_backward(a.dq.ref(), a.dk.f32(), a.dv.f32(), a.dout.ref(), a.out.ref(), a.log_sum_exp.f32(),
                       a.q.ref(), a.k.ref(), a.v.ref(), s, first.empty() ? nullptr : first.data(),
                       {static_cast<std::byte*>(workspace.ref().data), attention_backward_workspace(s)},
                       stream);
  }

  std::unique_ptr<KernelSet> reference_ = make_reference_kernels();
};

AttentionShape device_shape(int64_t batch, int64_t queries, int64_t offset, int64_t heads, int64_t kv_heads,
                            int64_t head_dim, int64_t gap, std::span<const int32_t> starts) {
  return {.batch = batch,
          .query_length = queries,
          .key_length = offset + queries,
          .query_offset = offset,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .q_stride = heads * head_dim + gap,
          .k_stride = kv_heads * head_dim + 2 * gap,
          .v_stride = kv_heads * head_dim + gap,
          .key_rows = offset + queries,
          .scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
          .document_starts = starts};
}

// Those of the other backends, which are narrow or not aligned, and those whose rows are copied in pieces of
// 16 bytes.
std::vector<AttentionShape> device_shapes() {
  static const std::vector<int32_t> many = {0, 40, 41, 128, 160, 200, 230, 231};  // in two rows of 200
  static const std::vector<int32_t> late = {0, 100, 140};
  std::vector<AttentionShape> all = attention_shapes();
  all.push_back(device_shape(2, 200, 0, 2, 1, 32, 8, many));
  all.push_back(device_shape(1, 150, 0, 4, 2, 64, 0, {}));
  all.push_back(device_shape(1, 71, 99, 2, 1, 64, 16, late));
  all.push_back(device_shape(1, 129, 0, 1, 1, 128, 0, {}));
  all.push_back(device_shape(1, 40, 115, 3, 1, 96, 0, late));
  all.push_back(device_shape(2, 33, 0, 2, 2, 24, 0, {}));
  return all;
}

TEST_P(DeviceAttention, EqualsTheReference) {
  for (const AttentionShape& s : device_shapes()) {
    AttentionCase expected(GetParam(), s), actual(expected);
    expected.forward(*reference_, s);
    forward(actual, s);
    expect_close(expected.out, actual.out, within().out, "out " + describe(s));
    expect_near(expected.log_sum_exp, actual.log_sum_exp, kWithinStatistic, "log_sum_exp " + describe(s));
    AttentionCase gradients(expected);
    expected.backward(*reference_, s);
    backward(gradients, s);
    expect_close(expected.dq, gradients.dq, within().gradients, "dq " + describe(s));
    expect_close(expected.dk, gradients.dk, within().gradients, "dk " + describe(s));
    expect_close(expected.dv, gradients.dv, within().gradients, "dv " + describe(s));
  }
}

TEST_P(DeviceAttention, BitsDoNotDependOnTheOrderOfThreads) {
  const std::vector<int32_t> starts = {0, 30, 66};
  for (const AttentionShape& s : {device_shape(1, 66, 30, 4, 2, 32, 8, starts), attention_shapes()[0]}) {
    AttentionCase in_turn(GetParam(), s);
    const AttentionCase fresh(in_turn);
    forward(in_turn, s);
    backward(in_turn, s);
    for (const uint64_t seed : {1, 2, 3}) {
      Machine machine({.seed = seed});
      AttentionCase random(fresh);
      forward(random, s, &machine);
      backward(random, s, &machine);
      expect_same_bits(in_turn.out, random.out, "out");
      expect_same_bits(in_turn.log_sum_exp, random.log_sum_exp, "log_sum_exp");
      expect_same_bits(in_turn.dq, random.dq, "dq");
      expect_same_bits(in_turn.dk, random.dk, "dk");
      expect_same_bits(in_turn.dv, random.dv, "dv");
    }
  }
}

// What a query may not see changes no bit: another document, whatever lies behind the last key.
TEST_P(DeviceAttention, HiddenKeysChangeNothing) {
  const std::vector<int32_t> starts = {0, 40};
  AttentionShape s = device_shape(1, 80, 0, 2, 1, 32, 0, starts);
  s.key_rows = 85;
  AttentionCase clean(GetParam(), s), spoilt(clean);
  for (int64_t j = 40; j < s.key_rows; ++j) {
    const double value = j < s.key_length ? 1e4 : NAN;
    for (int64_t c = 0; c < s.k_stride; ++c) spoilt.k.set(j * s.k_stride + c, value);
    for (int64_t c = 0; c < s.v_stride; ++c) spoilt.v.set(j * s.v_stride + c, value);
  }
  for (AttentionCase* attention : {&clean, &spoilt}) {
    forward(*attention, s);
    backward(*attention, s);
  }
  const int64_t out_width = s.heads * s.head_dim, key_width = s.kv_heads * s.head_dim;
  for (int64_t e = 0; e < 40 * out_width; ++e) {
    ASSERT_EQ(clean.out.at(e), spoilt.out.at(e)) << e;
    ASSERT_EQ(clean.dq.at(e), spoilt.dq.at(e)) << e;
  }
  for (int64_t e = 0; e < 40 * key_width; ++e) {
    ASSERT_EQ(clean.dk.at(e), spoilt.dk.at(e)) << e;
    ASSERT_EQ(clean.dv.at(e), spoilt.dv.at(e)) << e;
  }
  for (int64_t e = 0; e < spoilt.out.size(); ++e) ASSERT_TRUE(std::isfinite(spoilt.out.at(e))) << e;
}

// Queries in segments, each against all keys so far, equal the whole sequence; dk and dv add up.
TEST_P(DeviceAttention, SegmentsEqualTheWholeSequence) {
  const int64_t length = 150, cut = 67;
  AttentionShape whole = device_shape(1, length, 0, 2, 1, 32, 0, {});
  AttentionCase once(GetParam(), whole), pieces(once);
  forward(once, whole);
  backward(once, whole);
  const int64_t width = whole.heads * whole.head_dim;
  const auto segment = [&](int64_t begin, int64_t end) {
    AttentionShape s = whole;
    s.query_length = end - begin;
    s.query_offset = begin;
    s.key_length = end;
    AttentionCase part(GetParam(), s);
    const auto copy = [](Array& to, int64_t to_first, const Array& from, int64_t from_first, int64_t count) {
      for (int64_t e = 0; e < count; ++e) to.set(to_first + e, from.at(from_first + e));
    };
    copy(part.q, 0, pieces.q, begin * width, s.query_length * width);
    copy(part.dout, 0, pieces.dout, begin * width, s.query_length * width);
    copy(part.k, 0, pieces.k, 0, part.k.size());
    copy(part.v, 0, pieces.v, 0, part.v.size());
    copy(part.dk, 0, pieces.dk, 0, part.dk.size());
    copy(part.dv, 0, pieces.dv, 0, part.dv.size());
    forward(part, s);
    backward(part, s);
    copy(pieces.out, begin * width, part.out, 0, s.query_length * width);
    copy(pieces.dq, begin * width, part.dq, 0, s.query_length * width);
    copy(pieces.dk, 0, part.dk, 0, part.dk.size());
    copy(pieces.dv, 0, part.dv, 0, part.dv.size());
  };
  segment(cut, length);
  segment(0, cut);
  expect_near(once.out, pieces.out, within().out, "out");
  expect_near(once.dq, pieces.dq, within().gradients, "dq");
  expect_near(once.dk, pieces.dk, within().gradients, "dk");
  expect_near(once.dv, pieces.dv, within().gradients, "dv");
}

// Scores far beyond the range of an exponential.
TEST_P(DeviceAttention, LargeScores) {
  AttentionShape s = device_shape(1, 70, 0, 2, 2, 32, 0, {});
  s.scale = 40.0f;
  AttentionCase expected(GetParam(), s), actual(expected);
  expected.forward(*reference_, s);
  forward(actual, s);
  expect_near(expected.out, actual.out, std::max(2e-3, within().out), "out");
  expect_near(expected.log_sum_exp, actual.log_sum_exp, kWithinStatistic, "log_sum_exp");
}

TEST(DeviceAttentionErrors, WhatTheKernelsCannotDoIsRefused) {
  const auto refused = [](const AttentionShape& s, size_t workspace) {
    AttentionCase a(DType::kF32, s);
    std::vector<std::byte> memory(workspace);
    EXPECT_THROW(
        attention_backward(a.dq.ref(), a.dk.f32(), a.dv.f32(), a.dout.ref(), a.out.ref(), a.log_sum_exp.f32(),
                           a.q.ref(), a.k.ref(), a.v.ref(), s, nullptr, memory, nullptr),
        std::logic_error);
  };
  const AttentionShape s = device_shape(1, 4, 0, 1, 1, 16, 0, {});
  refused(s, attention_backward_workspace(s) - 1);
  refused(device_shape(1, 4, 0, 1, 1, 129, 0, {}), 1000);
  AttentionShape beyond = s;
  beyond.query_offset = 1;
  refused(beyond, 1000);
}

INSTANTIATE_TEST_SUITE_P(Simt, DeviceAttention, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace trainer::simt
