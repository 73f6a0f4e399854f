#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "dsp/check.h"
#include "dsp/published.h"
#include "dsp/small_machine.h"

namespace trainer::dsp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(DspGemm, EqualsDoublePrecisionForAllKindsOfTiles) {
  const Machine machine;
  const GemmProblem problem{50, 96, 160};
  for (const GemmTile& tile : {GemmTile{3, 96, 160, 96, 160},  // all at once
                               GemmTile{3, 32, 64, 64, 160},   // edges in depth, panels and columns
                               GemmTile{1, 16, 32, 48, 96},    // several passes and residents
                               GemmTile{2, 32, 48, 96, 96}}) {
    EXPECT_LT(gemm_error(machine, problem, tile, 7), kGemmTolerance) << tile.rows << ' ' << tile.depth;
    EXPECT_GT(gemm_error(machine, problem, tile, 7), 0);  // fp16 is not double
  }
}

TEST(DspGemm, CountsTheSameWithAndWithoutValues) {
  const Machine machine;
  const GemmProblem problem{50, 96, 160};
  const GemmTile tile{2, 32, 48, 64, 96};
  const std::vector<float> a(50 * 96, 1.0f), b(96 * 160, 0.5f);
  const GemmOperands operands{a, b};
  const GemmResult with = run_gemm(machine, problem, tile, &operands),
                   again = run_gemm(machine, problem, tile, &operands);
  const GemmResult without = run_gemm(machine, problem, tile);
  EXPECT_EQ(with.c, again.c);
  EXPECT_EQ(with.c[0], 48.0f);
  EXPECT_TRUE(without.c.empty());
  EXPECT_EQ(with.count.cycles, without.count.cycles);
  EXPECT_EQ(with.count.ddr_bytes, without.count.ddr_bytes);
}

// A once for each block of resident columns, B once for each pass over the rows, C once.
TEST(DspGemm, CountsBytes) {
  const Machine machine;
  const GemmResult result = run_gemm(machine, {96, 128, 192}, {2, 32, 48, 64, 96});
  EXPECT_EQ(result.count.ddr_bytes, 2 * (2 * 96 * 128 + 2 * 128 * 192 + 96 * 192));
  EXPECT_EQ(result.count.on_chip_bytes, 2 * 96 * 128 * (192 / 48));
}

TEST(DspGemm, RefusesTilesThatDoNotFitOrAlign) {
  const Machine machine;
  const GemmProblem problem{2048, 4096, 4096};
  const auto message = [&](const GemmTile& tile) -> std::string {
    try {
      run_gemm(machine, problem, tile);
    } catch (const InputError& error) {
      return error.what();
    }
    return "no InputError";
  };
  EXPECT_THAT(message({86, 256, 512, 256, 512}),
              AllOf(HasSubstr("SM of DSP 0: A_2 needs 44032 bytes"), HasSubstr("21504 of 65536 are free")));
  EXPECT_THAT(message({86, 128, 512, 2048, 512}), HasSubstr("GSM: A_g needs 8454144 bytes"));
  EXPECT_THAT(message({29, 256, 1024, 256, 1024}), HasSubstr("AM of DSP 0: B_2 needs 524288 bytes"));
  EXPECT_THAT(message({29, 40, 256, 4080, 4096}), HasSubstr("bytes a row is not aligned to 32 bytes"));
  EXPECT_THAT(message({0, 32, 256, 4096, 4096}), HasSubstr("above 0"));
}

TEST(DspGemm, ReproducesThePublishedUtilisations) {
  const Machine machine;
  struct Pair {
    double published, ours;
  };
  std::vector<Pair> pairs;
  for (const PublishedGemm& published : kPublishedGemms) {
    const GemmTile tile = search_gemm_tile(machine, published.problem);
    const GemmResult result = run_gemm(machine, published.problem, tile);
    pairs.push_back({published.utilisation, 100 * result.utilisation(machine, published.problem)});
    EXPECT_NEAR(pairs.back().ours, published.utilisation, 2)
        << published.problem.k << " x " << published.problem.n;
    EXPECT_NEAR(machine.seconds(result.count.cycles) * 1e3 / published.milliseconds, 1, 0.03);
  }
  std::ranges::sort(pairs, {}, &Pair::published);
  EXPECT_TRUE(std::ranges::is_sorted(pairs, {}, &Pair::ours));
}

TEST(DspGemm, StallWordsAreTheNearestToTheFittedShape) {
  const PublishedGemm& fitted = kPublishedGemms.front();
  ASSERT_EQ(fitted.problem.k, 4096);
  ASSERT_EQ(fitted.problem.n, 4096);
  const auto distance = [&](int64_t more_words) {
    Machine machine;
    machine.stall_words += more_words;
    const GemmTile tile = search_gemm_tile(machine, fitted.problem);
    return std::abs(100 * run_gemm(machine, fitted.problem, tile).utilisation(machine, fitted.problem) -
                    fitted.utilisation);
  };
  EXPECT_LT(distance(0), distance(-1));
  EXPECT_LT(distance(0), distance(1));
}

// Every tile of a small machine: what the formula says of its memories is what allocation does, and none is
// much better than what the search found.
TEST(DspGemm, SearchFindsATileThatFits) {
  const Machine machine = small_machine();
  const GemmProblem problem{14, 96, 64};
  const GemmTile found = search_gemm_tile(machine, problem);
  EXPECT_TRUE(gemm_tile_fits(machine, problem, found));
  const int64_t cycles = run_gemm(machine, problem, found).count.cycles;
  int64_t fewest = INT64_MAX;
  int fitting = 0, refused = 0;
  for (int64_t rows = 1; rows <= 7; ++rows)
    for (int64_t depth = 8; depth <= 96; depth += 8)
      for (int64_t columns = 16; columns <= 64; columns += 16)
        for (int64_t panel_depth = depth; panel_depth <= 96; panel_depth += depth)
          for (int64_t resident = columns; resident <= 64; resident += columns) {
            const GemmTile tile{rows, depth, columns, panel_depth, resident};
            const bool fits = gemm_tile_fits(machine, problem, tile);
            try {
              fewest = std::min(fewest, run_gemm(machine, problem, tile).count.cycles);
              EXPECT_TRUE(fits) << rows << ' ' << depth << ' ' << columns << ' ' << panel_depth << ' '
                                << resident;
              ++fitting;
            } catch (const InputError&) {
              EXPECT_FALSE(fits) << rows << ' ' << depth << ' ' << columns << ' ' << panel_depth << ' '
                                 << resident;
              ++refused;
            }
          }
  EXPECT_GT(fitting, 50);
  EXPECT_GT(refused, 50);
  EXPECT_LE(cycles, fewest * 11 / 10);
}

TEST(DspGemm, SearchFindsTilesForManyRowsAndColumns) {
  const Machine machine;
  for (const GemmProblem& problem : {GemmProblem{60000, 512, 256}, GemmProblem{64, 64, 100000}})
    EXPECT_TRUE(gemm_tile_fits(machine, problem, search_gemm_tile(machine, problem)));
}

TEST(DspGemm, SearchSaysWhenNothingFits) {
  Machine machine = small_machine();
  machine.array_memory_bytes = 64;
  EXPECT_THROW(search_gemm_tile(machine, {14, 96, 64}), InputError);
  EXPECT_THROW(search_gemm_tile(small_machine(), {14, 90, 64}), InputError);  // unaligned rows
}

}  // namespace
}  // namespace trainer::dsp
