#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "dsp/check.h"
#include "dsp/small_machine.h"

namespace trainer::dsp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Staging kStagings[] = {Staging::kResident, Staging::kDdr, Staging::kDdrEachPart};

TEST(DspAttention, EqualsDoublePrecision) {
  Machine machine;
  machine.dsps = 3;  // several waves
  for (const Staging staging : kStagings)
    for (const AttentionTile& tile : {AttentionTile{16, 16}, {16, 48}, {48, 32}, {32, 64}}) {
      const double error = attention_error(machine, {112, 32}, tile, staging, 3);
      EXPECT_LT(error, kAttentionTolerance) << tile.queries << " x " << tile.keys;
      EXPECT_GT(error, 0);
    }
}

TEST(DspAttention, EqualsDoublePrecisionOnTheWholeCluster) {
  const Machine machine;
  EXPECT_LT(attention_error(machine, {256, 128}, {16, 128}, Staging::kResident, 4), kAttentionTolerance);
}

// Staging moves the same halves over another way.
TEST(DspAttention, StagingKeepsTheBits) {
  Machine machine;
  machine.dsps = 3;
  const AttentionProblem problem{112, 16};
  const AttentionReference reference(problem, 5);
  const AttentionOperands operands = reference.operands();
  const AttentionResult resident =
      run_attention_backward(machine, problem, {16, 32}, Staging::kResident, &operands);
  for (const Staging staging : kStagings) {
    const AttentionResult result = run_attention_backward(machine, problem, {16, 32}, staging, &operands);
    EXPECT_EQ(result.grad_q, resident.grad_q);
    EXPECT_EQ(result.grad_k, resident.grad_k);
    EXPECT_EQ(result.grad_v, resident.grad_v);
    EXPECT_EQ(result.count.cycles, run_attention_backward(machine, problem, {16, 32}, staging).count.cycles);
  }
}

// One wave of two query tiles, two key tiles: of the four pairs, the one above the diagonal is left out.
TEST(DspAttention, CountsBytes) {
  Machine machine;
  machine.dsps = 2;
  const AttentionProblem problem{64, 16};
  const int64_t rows = 2 * 64 * 16, pair = 2 * 32 * 32, keys = 2 * 32 * 16;
  const auto ddr_bytes = [&](Staging staging) {
    return run_attention_backward(machine, problem, {32, 32}, staging).count.ddr_bytes;
  };
  const int64_t loaded = 3 * rows + 2 * 2 * keys + 3 * pair, grad_q = rows;
  EXPECT_EQ(ddr_bytes(Staging::kResident), loaded + grad_q + 2 * rows);
  const int64_t round_trips = 2 * 2 * 3 * pair;  // GP and GS
  EXPECT_EQ(ddr_bytes(Staging::kDdr), loaded + grad_q + round_trips + 2 * 2 * 2 * keys);
  EXPECT_EQ(ddr_bytes(Staging::kDdrEachPart), loaded + grad_q + round_trips + 3 * 2 * 2 * keys);
}

// RATrain reports 1.24 to 1.54; its sweep of lengths ends at 4096. The rate and the start on chip are fitted
// on that.
TEST(DspAttention, ResidentIsFasterByThePublishedRatios) {
  const Machine machine;
  double before = 1;
  for (const int64_t sequence : {512, 1024, 2048, 4096, 8192}) {
    const auto cycles = [&](Staging staging) {
      const AttentionProblem problem{sequence, 128};
      const AttentionTile tile = search_attention_tile(machine, problem, staging);
      return static_cast<double>(run_attention_backward(machine, problem, tile, staging).count.cycles);
    };
    const double ratio = cycles(Staging::kDdr) / cycles(Staging::kResident);
    EXPECT_GT(ratio, before) << sequence;  // more tiles share what begins and ends a wave
    EXPECT_GT(cycles(Staging::kDdrEachPart), cycles(Staging::kDdr));
    if (sequence <= 4096) {
      EXPECT_GE(ratio, 1.24 + 0.005) << sequence;
      EXPECT_LE(ratio, 1.54 - 0.005) << sequence;
    } else {
      EXPECT_NEAR(ratio, 1.668, 0.001) << "no published length";
    }
    before = ratio;
  }
}

TEST(DspAttention, RefusesTilesThatDoNotFitOrAlign) {
  const Machine machine;
  const auto message = [&](const AttentionProblem& problem, const AttentionTile& tile) -> std::string {
    try {
      run_attention_backward(machine, problem, tile, Staging::kResident);
    } catch (const InputError& error) {
      return error.what();
    }
    return "no InputError";
  };
  EXPECT_THAT(message({16384, 128}, {64, 128}),
              AllOf(HasSubstr("GSM: GV needs 4194304 bytes"), HasSubstr("2097152 of")));
  EXPECT_THAT(message({2048, 128}, {256, 512}), HasSubstr("AM of DSP 0"));
  EXPECT_THAT(message({2048, 128}, {128, 256}), HasSubstr("SM of DSP 0"));
  EXPECT_THAT(message({2048, 128}, {64, 24}), HasSubstr("not aligned to 32 bytes"));
}

TEST(DspAttention, FormulaOfMemoriesIsWhatAllocationDoes) {
  Machine machine = small_machine();
  machine.scalar_memory_bytes = 4 << 10;
  machine.array_memory_bytes = 24 << 10;
  machine.shared_memory_bytes = 5 << 10;
  const AttentionProblem problem{64, 16};
  int fitting = 0, refused = 0;
  for (const Staging staging : kStagings)
    for (int64_t queries = 8; queries <= 64; queries += 8)
      for (int64_t keys = 8; keys <= 64; keys += 8) {
        const bool fits = attention_tile_fits(machine, problem, {queries, keys}, staging);
        try {
          run_attention_backward(machine, problem, {queries, keys}, staging);
          EXPECT_TRUE(fits) << queries << " x " << keys;
          ++fitting;
        } catch (const InputError&) {
          EXPECT_FALSE(fits) << queries << " x " << keys;
          ++refused;
        }
      }
  EXPECT_GT(fitting, 5);
  EXPECT_GT(refused, 5);
}

}  // namespace
}  // namespace trainer::dsp
