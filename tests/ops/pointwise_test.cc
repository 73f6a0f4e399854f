#include <cmath>
#include <limits>

#include "ops/bf16.h"
#include "ops/op_test.h"

namespace trainer {
namespace {

constexpr int64_t kCounts[] = {1, 3, 17, 64, 65, 1000, 40003};

TEST(Bf16, RoundsToNearestEvenAndKeepsWhatIsNotFinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(float_to_bf16(1.0f), 0x3F80);
  EXPECT_EQ(float_to_bf16(-2.0f), 0xC000);
  EXPECT_EQ(float_to_bf16(0x1.01p0f), 0x3F80) << "a tie goes to the even neighbour below";
  EXPECT_EQ(float_to_bf16(0x1.03p0f), 0x3F82) << "a tie goes to the even neighbour above";
  EXPECT_EQ(float_to_bf16(0x1.010002p0f), 0x3F81) << "just above a tie";
  EXPECT_EQ(float_to_bf16(-0.0f), 0x8000);
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_EQ(float_to_bf16(-kInfinity), 0xFF80);
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::bit_cast<float>(0x7F800001u)))));
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::bit_cast<float>(0xFFFFFFFFu)))));
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = bf16_to_float(static_cast<uint16_t>(bits));
    if (!std::isnan(value)) {
      ASSERT_EQ(float_to_bf16(value), bits);
    }
  }
}

class PointwiseTest : public OpTest {};

// Magnitudes from denormals to overflow, ties, infinities, NaN.
Array hard_values(DType dtype, int64_t count) {
  Array values(dtype, count, 11);
  for (int64_t i = 0; i < count; ++i)
    values.set(i, std::ldexp(values.at(i), static_cast<int>(i % 290) - 150));
  const double special[] = {0.0,      -0.0,      0x1.01p0, 0x1.03p0,     -0x1.01p0,
                            INFINITY, -INFINITY, NAN,      3.4028234e38, 1e-45};
  for (int64_t i = 0; i < std::min<int64_t>(count, std::size(special)); ++i) values.set(i, special[i]);
  if (dtype == DType::kF32 && count > 12) {
    // NaN whose payload lies in the bits that bf16 drops, and one that rounding up would turn into a zero.
    const uint32_t bits[] = {0x7F800001u, 0xFFFFFFFFu};
    std::memcpy(values.f32() + 10, bits, sizeof(bits));
  }
  return values;
}

void expect_same_values(const Array& expected, const Array& actual, const std::string& what) {
  for (int64_t i = 0; i < expected.size(); ++i) {
    if (std::isnan(expected.at(i))) {
      ASSERT_TRUE(std::isnan(actual.at(i))) << what << " at " << i;
    } else {
      ASSERT_EQ(expected.at(i), actual.at(i)) << what << " at " << i;
      ASSERT_EQ(std::signbit(expected.at(i)), std::signbit(actual.at(i))) << what << " at " << i;
    }
  }
}

TEST_P(PointwiseTest, ConvertIsExactlyRounded) {
  const Granted kernels = granted({});
  for (const int64_t count : kCounts) {
    for (const DType to : {DType::kF32, DType::kBF16}) {
      const Array from = hard_values(dtype(), count);
      Array expected(to, count, 1), actual(expected);
      reference_->convert(expected.ref(), from.ref(), count);
      kernels->convert(actual.ref(), from.ref(), count);
      expect_same_values(expected, actual, fmt::format("{} elements to {}", count, name_of(to)));
    }
  }
}

TEST_P(PointwiseTest, ConvertRowsLeavesTheGapsAlone) {
  const Granted kernels = granted({});
  for (const int64_t columns : {1, 3, 17, 65, 320}) {
    for (const DType to : {DType::kF32, DType::kBF16}) {
      const int64_t rows = 37, from_stride = columns + 5, to_stride = columns + 2;
      const Array from(dtype(), rows * from_stride, 1);
      Array expected(to, rows * to_stride, 2), actual(expected);
      reference_->convert_rows(expected.ref(), to_stride, from.ref(), from_stride, rows, columns);
      kernels->convert_rows(actual.ref(), to_stride, from.ref(), from_stride, rows, columns);
      expect_same_bits(expected, actual, fmt::format("{} columns to {}", columns, name_of(to)));
    }
  }
}

TEST_P(PointwiseTest, AddRoundsOnce) {
  const Granted kernels = granted({});
  for (const int64_t count : kCounts) {
    const Array x = hard_values(dtype(), count);
    Array expected(dtype(), count, 2), actual(expected);
    reference_->add(expected.ref(), x.ref(), count);
    kernels->add(actual.ref(), x.ref(), count);
    expect_same_values(expected, actual, fmt::format("{} elements", count));
  }
}

TEST_P(PointwiseTest, FillZeroWritesEveryByteAndNoMore) {
  const Granted kernels = granted({});
  for (const int64_t count : kCounts) {
    Array data(dtype(), count, 1);
    kernels->fill_zero(data.ref().data, static_cast<size_t>(count) * size_of(dtype()));
    expect_same_bits(Array::filled(dtype(), count, 0.0), data, fmt::format("{} elements", count));
  }
  kernels->fill_zero(nullptr, 0);
}

TEST_P(PointwiseTest, Swiglu) {
  const Granted kernels = granted({});
  for (const int64_t ffn : {1, 3, 17, 65, 688}) {
    const int64_t tokens = 19;
    const Array gate_up(dtype(), 2 * tokens * ffn, 1, 4.0), dy(dtype(), tokens * ffn, 2);
    Array expected(dtype(), tokens * ffn, 3), actual(expected);
    reference_->swiglu_forward(expected.ref(), gate_up.ref(), tokens, ffn);
    kernels->swiglu_forward(actual.ref(), gate_up.ref(), tokens, ffn);
    expect_near(expected, actual, within("pointwise"), fmt::format("y {}", ffn));
    Array expected_gradient(dtype(), 2 * tokens * ffn, 4), gradient(expected_gradient);
    reference_->swiglu_backward(expected_gradient.ref(), dy.ref(), gate_up.ref(), tokens, ffn);
    kernels->swiglu_backward(gradient.ref(), dy.ref(), gate_up.ref(), tokens, ffn);
    expect_near(expected_gradient, gradient, within("pointwise"), fmt::format("dgate_up {}", ffn));
  }
}

TEST_P(PointwiseTest, Gelu) {
  const Granted kernels = granted({});
  for (const int64_t count : kCounts) {
    for (const bool exact : {false, true}) {
      const Array x(dtype(), count, 1, 3.0), dy(dtype(), count, 2);
      Array expected(dtype(), count, 3), actual(expected), expected_gradient(expected), gradient(expected);
      reference_->gelu_forward(expected.ref(), x.ref(), count, exact);
      kernels->gelu_forward(actual.ref(), x.ref(), count, exact);
      expect_near(expected, actual, within("pointwise"), fmt::format("y {} exact {}", count, exact));
      reference_->gelu_backward(expected_gradient.ref(), dy.ref(), x.ref(), count, exact);
      kernels->gelu_backward(gradient.ref(), dy.ref(), x.ref(), count, exact);
      expect_near(expected_gradient, gradient, within("pointwise"),
                  fmt::format("dx {} exact {}", count, exact));
    }
  }
}

// The activations through the whole range of their argument, each value against its own size.
TEST_P(PointwiseTest, ActivationsAreAccurateOverTheWholeRange) {
  const Granted kernels = granted({});
  const int64_t count = 20001;
  Array x(dtype(), count, 1), gate_up(dtype(), 2 * count, 2);
  for (int64_t i = 0; i < count; ++i) {
    x.set(i, -20.0 + 40.0 * static_cast<double>(i) / static_cast<double>(count - 1));
    gate_up.set(i, 4.0 * x.at(i));
    gate_up.set(count + i, 1.0);
  }
  Array expected(dtype(), count, 3), actual(expected);
  const auto check = [&](const char* what, double relative, double absolute) {
    for (int64_t i = 0; i < count; ++i) {
      ASSERT_LE(std::abs(actual.at(i) - expected.at(i)), relative * std::abs(expected.at(i)) + absolute)
          << what << " at " << x.at(i) << ": expected " << expected.at(i) << ", got " << actual.at(i);
    }
  };
  const double unit = dtype() == DType::kF32 ? 0x1p-23 : 0x1p-8;
  reference_->swiglu_forward(expected.ref(), gate_up.ref(), 1, count);
  kernels->swiglu_forward(actual.ref(), gate_up.ref(), 1, count);
  check("silu", 5.0 * unit, 0.0);
  for (const bool exact : {false, true}) {
    reference_->gelu_forward(expected.ref(), x.ref(), count, exact);
    kernels->gelu_forward(actual.ref(), x.ref(), count, exact);
    check("gelu", 5.0 * unit, 1e-6);
    reference_->gelu_backward(expected.ref(), Array::filled(dtype(), count, 1.0).ref(), x.ref(), count,
                              exact);
    kernels->gelu_backward(actual.ref(), Array::filled(dtype(), count, 1.0).ref(), x.ref(), count, exact);
    check("gelu slope", 5.0 * unit, 1e-6);
  }
}

TEST_P(PointwiseTest, ActivationsOfExtremeArguments) {
  const Granted kernels = granted({});
  const std::vector<double> extremes = {-1e30, -1000.0, -150.0, -90.0, 0.0, 90.0, 150.0, 1000.0, 1e30, NAN};
  const auto count = static_cast<int64_t>(extremes.size());
  Array x(dtype(), count, 1), gate_up = Array::filled(dtype(), 2 * count, 1.0), y(x), dx(x),
                              dgate_up(gate_up);
  const Array ones = Array::filled(dtype(), count, 1.0);
  for (int64_t i = 0; i < count; ++i) {
    x.set(i, extremes[i]);
    gate_up.set(i, extremes[i]);
  }
  const auto expect_limits = [&](const Array& value, const Array& slope, const char* what) {
    for (int64_t i = 0; i + 1 < count; ++i) {
      EXPECT_NEAR(value.at(i), std::max(0.0, x.at(i)), 1e-6 * std::abs(x.at(i))) << what << " of " << x.at(i);
      EXPECT_NEAR(slope.at(i), x.at(i) > 0.0 ? 1.0 : (x.at(i) == 0.0 ? 0.5 : 0.0), 1e-6)
          << what << " of " << x.at(i);
    }
    EXPECT_TRUE(std::isnan(value.at(count - 1)) && std::isnan(slope.at(count - 1))) << what;
  };
  kernels->swiglu_forward(y.ref(), gate_up.ref(), 1, count);
  kernels->swiglu_backward(dgate_up.ref(), ones.ref(), gate_up.ref(), 1, count);
  expect_limits(y, dgate_up, "silu");
  x.set(0, -1e10);  // the cube of a larger one overflows
  x.set(count - 2, 1e10);
  for (const bool exact : {false, true}) {
    kernels->gelu_forward(y.ref(), x.ref(), count, exact);
    kernels->gelu_backward(dx.ref(), ones.ref(), x.ref(), count, exact);
    expect_limits(y, dx, "gelu");
  }
}

TEST_P(PointwiseTest, RopeBetweenStridesAndTypes) {
  const Granted kernels = granted({});
  for (const int64_t head_dim : {2, 6, 34, 64, 130}) {
    for (const int64_t heads : {1, 3}) {
      const int64_t tokens = 11, half = head_dim / 2, width = heads * head_dim;
      const Array cosine(DType::kF32, 32 * half, 1), sine(DType::kF32, 32 * half, 2);
      const std::vector<int32_t> positions = {0, 1, 2, 31, 0, 7, 7, 8, 9, 10, 11};
      for (const DType to : {DType::kF32, DType::kBF16}) {
        for (const bool inverse : {false, true}) {
          const RopeArguments a{tokens,           heads,        head_dim,   width + 3, width + 1,
                                positions.data(), cosine.f32(), sine.f32(), inverse};
          const Array in(dtype(), tokens * a.in_stride, 3);
          Array expected(to, tokens * a.out_stride, 4), actual(expected);
          reference_->rope(expected.ref(), in.ref(), a);
          kernels->rope(actual.ref(), in.ref(), a);
          expect_near(expected, actual, tolerance("pointwise").of(to),
                      fmt::format("{} x {}", heads, head_dim));
        }
      }
    }
  }
}

TEST_P(PointwiseTest, RopeInPlace) {
  const Granted kernels = granted({});
  const int64_t tokens = 9, heads = 2, head_dim = 40, stride = 100;
  const Array cosine(DType::kF32, tokens * head_dim / 2, 1), sine(DType::kF32, tokens * head_dim / 2, 2);
  const std::vector<int32_t> positions = {0, 1, 2, 3, 4, 5, 6, 7, 8};
  const RopeArguments a{tokens,           heads,        head_dim,   stride, stride,
                        positions.data(), cosine.f32(), sine.f32(), false};
  const Array in(dtype(), tokens * stride, 3);
  Array apart(in), in_place(in);
  kernels->rope(apart.ref(), in.ref(), a);
  kernels->rope(in_place.ref(), in_place.ref(), a);
  expect_same_bits(apart, in_place, "rope");
}

// Every sixth token is one that the table does not hold.
TEST_P(PointwiseTest, EmbeddingWithAndWithoutPositions) {
  const Granted kernels = granted({});
  for (const int64_t hidden : {1, 3, 17, 65, 768}) {
    const int64_t count = 23, vocabulary = 11, places = 5;
    const Array table(dtype(), vocabulary * hidden, 1), position_table(dtype(), places * hidden, 2);
    const Array dy(dtype(), count * hidden, 3);
    std::vector<int32_t> tokens, positions;
    for (int64_t t = 0; t < count; ++t) {
      tokens.push_back(t % 6 == 5 ? -1 : static_cast<int32_t>(t * t % 7));
      positions.push_back(static_cast<int32_t>(t % places));
    }
    for (const bool placed : {false, true}) {
      const std::string what = fmt::format("hidden {} positions {}", hidden, placed);
      const int32_t* where = placed ? positions.data() : nullptr;
      const ConstRef places_table = placed ? position_table.ref() : ConstRef{};
      Array expected(dtype(), count * hidden, 4), actual(expected);
      reference_->embedding_forward(expected.ref(), tokens.data(), table.ref(), where, places_table, count,
                                    hidden);
      kernels->embedding_forward(actual.ref(), tokens.data(), table.ref(), where, places_table, count,
                                 hidden);
      expect_near(expected, actual, within("embedding"), "y " + what);
      for (int64_t c = 0; c < hidden; ++c)
        EXPECT_EQ(actual.at(5 * hidden + c), placed ? position_table.at(c) : 0.0) << what;
      Array expected_table(DType::kF32, vocabulary * hidden, 5), actual_table(expected_table);
      Array expected_places(DType::kF32, places * hidden, 6), actual_places(expected_places);
      reference_->embedding_backward(expected_table.f32(), tokens.data(),
                                     placed ? expected_places.f32() : nullptr, where, dy.ref(), count,
                                     hidden);
      kernels->embedding_backward(actual_table.f32(), tokens.data(), placed ? actual_places.f32() : nullptr,
                                  where, dy.ref(), count, hidden);
      expect_same_bits(expected_table, actual_table, "dtable, summed in token order, " + what);
      expect_same_bits(expected_places, actual_places, "dposition, summed in token order, " + what);
    }
  }
}

TRAINER_OP_CASES(PointwiseTest);

}  // namespace
}  // namespace trainer
