// Numbers in 8 bits and AdamW on them, against plain loops that know only what cuda/kernels.h says.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "cuda/kernels.h"
#include "ops/array.h"

namespace trainer::simt {
namespace {

constexpr int64_t kCounts[] = {1, 255, 256, 257, 1000};

int64_t blocks_of(int64_t count) { return (count + kCodeBlock - 1) / kCodeBlock; }

// Dynamic numbers (Dettmers et al., section 2.2): within a decade the middles of equal steps from a tenth to
// one, half as many in each smaller decade; 0 and 1.
std::vector<double> book_of(CodeKind kind) {
  std::vector<double> book = {0.0, 1.0};
  int steps = kind == CodeKind::kSigned ? 64 : 128;
  for (double decade = 1.0; book.size() < 256; decade /= 10.0, steps /= 2) {
    for (int step = 0; step < steps; ++step) {
      const double value = decade * (0.1 + 0.9 * (step + 0.5) / steps);
      book.push_back(value);
      if (kind == CodeKind::kSigned) book.push_back(-value);
    }
  }
  std::sort(book.begin(), book.end());
  return book;
}

TEST(Codes, AreTheDynamicNumbersInOrder) {
  for (const CodeKind kind : {CodeKind::kSigned, CodeKind::kUnsigned}) {
    const std::vector<double> book = book_of(kind);
    ASSERT_EQ(book.size(), 256u);
    for (int code = 0; code < 256; ++code) {
      EXPECT_FLOAT_EQ(code_value(static_cast<uint8_t>(code), kind),
                      static_cast<float>(book[static_cast<size_t>(code)]));
    }
  }
}

// The code of `value` among the numbers of `kind`, by looking at each.
int nearest(double value, double scale, CodeKind kind) {
  int best = -1;
  double distance = INFINITY;
  for (int code = 0; code < 256; ++code) {
    const double number = code_value(static_cast<uint8_t>(code), kind);
    if (kind == CodeKind::kUnsigned && value > 0.0 && number == 0.0) continue;
    const double off = std::abs(number * scale - value);
    if (off < distance) distance = off, best = code;
  }
  return best;
}

// A code is the nearest, or as near as its rounding can tell.
void expect_nearest(int code, double value, double scale, CodeKind kind, const std::string& what) {
  const int expected = nearest(value, scale, kind);
  if (code == expected) return;
  const auto off = [&](int c) { return std::abs(code_value(static_cast<uint8_t>(c), kind) * scale - value); };
  EXPECT_NEAR(off(code), off(expected), 1e-6 * std::abs(value))
      << what << ": " << code << " for " << expected;
}

std::vector<SimtOptions> code_orders() { return {{}, {.seed = 1}, {.seed = 2}}; }

TEST(Codes, QuantiseTakesTheNearestAndDequantiseGivesIt) {
  for (const CodeKind kind : {CodeKind::kSigned, CodeKind::kUnsigned}) {
    for (const int64_t count : kCounts) {
      Array x(DType::kF32, count, 1);
      for (int64_t i = 0; i < count; ++i) {
        const double value = x.at(i) * std::pow(10.0, static_cast<double>(i % 9) - 8.0);
        x.set(i, i == 77 || i / kCodeBlock == 1 ? 0.0 : kind == CodeKind::kSigned ? value : std::abs(value));
      }
      for (const SimtOptions& order : code_orders()) {
        Machine machine(order);
        std::vector<uint8_t> codes(static_cast<size_t>(count + 1), 0xA5);
        Array scales(DType::kF32, blocks_of(count), 2), again(DType::kF32, count, 3);
        quantise(codes.data(), scales.f32(), x.f32(), count, kind, &machine);
        dequantise(again.f32(), codes.data(), scales.f32(), count, kind, &machine);
        EXPECT_EQ(codes.back(), 0xA5) << "written past the codes";
        for (int64_t i = 0; i < count; ++i) {
          const int64_t first = i / kCodeBlock * kCodeBlock, end = std::min(count, first + kCodeBlock);
          double largest = 0.0;
          for (int64_t j = first; j < end; ++j) largest = std::max(largest, std::abs(x.at(j)));
          const uint8_t code = codes[static_cast<size_t>(i)];
          ASSERT_EQ(scales.at(i / kCodeBlock), largest);
          if (largest > 0.0) expect_nearest(code, x.at(i), largest, kind, fmt::format("{} of {}", i, count));
          ASSERT_EQ(again.f32()[i], code_value(code, kind) * scales.f32()[i / kCodeBlock]);
          ASSERT_TRUE(x.at(i) != 0.0 || again.at(i) == 0.0) << i;
        }
      }
    }
  }
}

struct State8 {
  Array master, working, gradient, scales1, scales2;
  std::vector<uint8_t> codes1, codes2;
  State8(DType type, int64_t count)
      : master(DType::kF32, count, 1),
        working(type, count, 2),
        gradient(DType::kF32, count, 3, 100.0),
        scales1(Array::filled(DType::kF32, blocks_of(count), 0.0)),
        scales2(scales1),
        codes1(static_cast<size_t>(count), 127),
        codes2(static_cast<size_t>(count), 0) {}
  AdamW8Bit arguments(int64_t step) {
    return {.plain = {.count = master.size(),
                      .master = master.f32(),
                      .moment1 = nullptr,
                      .moment2 = nullptr,
                      .working = working.ref(),
                      .gradient = gradient.f32(),
                      .gradient_scale = 0.01f,
                      .learning_rate = 0.02f,
                      .beta1 = 0.9f,
                      .beta2 = 0.95f,
                      .epsilon = 1e-8f,
                      .weight_decay = 0.1f,
                      .step = step},
            .codes1 = codes1.data(),
            .codes2 = codes2.data(),
            .scales1 = scales1.f32(),
            .scales2 = scales2.f32()};
  }
};

// One update in double from the state before it; the codes afterwards must be the nearest to its moments.
void expect_update(State8& before, State8& after, int64_t step, const std::string& what) {
  const AdamW a = before.arguments(step).plain;
  const double beta1 = a.beta1, beta2 = a.beta2;
  std::vector<double> moment1, moment2;
  Array master(DType::kF32, a.count, 9);
  for (int64_t i = 0; i < a.count; ++i) {
    const auto at = static_cast<size_t>(i);
    const double gradient = static_cast<double>(a.gradient[i]) * a.gradient_scale;
    moment1.push_back(beta1 * code_value(before.codes1[at], CodeKind::kSigned) *
                          before.scales1.at(i / kCodeBlock) +
                      (1.0 - beta1) * gradient);
    moment2.push_back(beta2 * code_value(before.codes2[at], CodeKind::kUnsigned) *
                          before.scales2.at(i / kCodeBlock) +
                      (1.0 - beta2) * gradient * gradient);
    const double root = std::sqrt(moment2[at] / (1.0 - std::pow(beta2, static_cast<double>(step))));
    const double update =
        moment1[at] / (1.0 - std::pow(beta1, static_cast<double>(step))) / (root + a.epsilon);
    master.set(i, a.master[i] * (1.0 - a.learning_rate * a.weight_decay) - a.learning_rate * update);
  }
  expect_near(master, after.master, 1e-6, "master " + what);
  for (int64_t i = 0; i < a.count; ++i) {
    const auto at = static_cast<size_t>(i);
    const int64_t block = i / kCodeBlock, end = std::min(a.count, (block + 1) * kCodeBlock);
    double largest1 = 0.0, largest2 = 0.0;
    for (int64_t j = block * kCodeBlock; j < end; ++j) {
      largest1 = std::max(largest1, std::abs(moment1[static_cast<size_t>(j)]));
      largest2 = std::max(largest2, moment2[static_cast<size_t>(j)]);
    }
    ASSERT_NEAR(after.scales1.at(block), largest1, 1e-6 * largest1) << what;
    ASSERT_NEAR(after.scales2.at(block), largest2, 1e-6 * largest2) << what;
    expect_nearest(after.codes1[at], moment1[at], largest1, CodeKind::kSigned, "moment 1 " + what);
    expect_nearest(after.codes2[at], moment2[at], largest2, CodeKind::kUnsigned, "moment 2 " + what);
  }
}

TEST(AdamW8Bit, IsAPlainLoopOnDequantisedMoments) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const int64_t count : kCounts) {
      State8 state(type, count);
      for (int64_t step = 1; step <= 3; ++step) {
        State8 before(state);
        Array gradient(DType::kF32, count, 10 + static_cast<uint64_t>(step), 100.0);
        std::copy_n(gradient.f32(), count, before.gradient.f32());
        std::copy_n(gradient.f32(), count, state.gradient.f32());
        State8 other(state);
        adamw_8bit(state.arguments(step), nullptr);
        expect_update(before, state, step, fmt::format("{} elements, step {}", count, step));
        for (int64_t i = 0; i < count; ++i) {
          Array rounded(type, 1, 0);
          rounded.set(0, state.master.at(i));
          ASSERT_EQ(rounded.at(0), state.working.at(i)) << "the working copy is the rounded master";
        }
        Machine machine({.seed = 7});
        adamw_8bit(other.arguments(step), &machine);
        expect_same_bits(state.master, other.master, "master in another order");
        EXPECT_EQ(state.codes1, other.codes1);
        EXPECT_EQ(state.codes2, other.codes2);
        expect_same_bits(state.scales1, other.scales1, "scales in another order");
      }
    }
  }
}

// A number that is small beside its block's largest has a small second moment, which must not become 0: the
// update would be divided by almost nothing.
TEST(AdamW8Bit, SmallGradientsBesideLargeOnesMoveTheirParametersByTheRateAtMost) {
  State8 state(DType::kF32, 256);
  const Array start(state.master);
  for (int64_t step = 1; step <= 5; ++step) {
    for (int64_t i = 0; i < 256; ++i) state.gradient.set(i, i == 0 ? 1e6 : step == 1 ? 1e2 : 0.0);
    AdamW8Bit a = state.arguments(step);
    a.plain.weight_decay = 0.0f;
    adamw_8bit(a, nullptr);
  }
  for (int64_t i = 0; i < 256; ++i) {
    EXPECT_LE(std::abs(state.master.at(i) - start.at(i)), 5 * 0.02 * 1.01) << i;
  }
}

}  // namespace
}  // namespace trainer::simt
