#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <set>

#include "base/error.h"
#include "support/kernel_bench.h"

namespace trainer {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Outcome {
  int code = 0;
  std::string output;  // standard output, then standard error where it is asked for
};

Outcome outcome_of(const std::string& words, bool with_errors) {
  const std::string command =
      std::string(BENCH_FOLDER) + "/" + words + (with_errors ? " 2>&1" : " 2>/dev/null");
  FILE* pipe = popen(command.c_str(), "r");
  Outcome outcome;
  std::array<char, 4096> block;
  for (size_t count = 0; (count = fread(block.data(), 1, block.size(), pipe)) > 0;)
    outcome.output.append(block.data(), count);
  outcome.code = WEXITSTATUS(pclose(pipe));
  return outcome;
}

Json quick_report(const std::string& words) {
  const Outcome outcome = outcome_of(words + " --quick --json", false);
  EXPECT_EQ(outcome.code, 0) << words;
  return parse_json(outcome.output, words);
}

class EveryProgram : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryProgram, AnswersHelpAndUnknownArguments) {
  const Outcome help = outcome_of(GetParam() + " --help", true);
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.output, StartsWith("usage: " + GetParam()));
  EXPECT_THAT(help.output, HasSubstr("--quick"));
  const Outcome refused = outcome_of(GetParam() + " --no-such-thing", true);
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.output, StartsWith(GetParam() + ": error: unknown argument '--no-such-thing'"));
}

INSTANTIATE_TEST_SUITE_P(Of, EveryProgram,
                         ::testing::Values("norm", "rope", "activation", "classifier", "optimizer", "copy",
                                           "gemm", "attention", "simulate"),
                         [](const auto& info) { return info.param; });

class KernelPrograms : public ::testing::TestWithParam<std::string> {};

TEST_P(KernelPrograms, ReportCheckedRatesBesideTheirCeilings) {
  const Json report = quick_report(GetParam() + " --threads 1");
  EXPECT_EQ(report["benchmark"], GetParam());
  EXPECT_EQ(report["backend"], "host");
  EXPECT_THAT(report["command"].get<std::string>(),
              StartsWith(GetParam() + " --backend host --threads 1 --quick"));
  std::set<std::string> cases, dtypes;
  for (const Json& row : report["rows"]) {
    const std::string what = row.dump();
    dtypes.insert(row["dtype"]);
    EXPECT_TRUE(cases
                    .insert(row["operation"].get<std::string>() + row["model"].get<std::string>() +
                            row["dtype"].get<std::string>() + row["shape"].dump())
                    .second)
        << what;
    EXPECT_GT(row["seconds"].get<double>(), 0) << what;
    EXPECT_GE(row["check_error"].get<double>(), 0) << what;
    EXPECT_LE(row["check_error"].get<double>(), row["check_tolerance"].get<double>()) << what;
    const bool flops = row.contains("flops_per_second");
    EXPECT_NE(flops, row.contains("bytes_per_second")) << what;
    const std::string rate = flops ? "flops_per_second" : "bytes_per_second";
    const double reached = row[rate].get<double>(), ceiling = row["ceiling_" + rate].get<double>();
    EXPECT_GT(reached, 0) << what;
    EXPECT_TRUE(std::isfinite(ceiling)) << what;
    EXPECT_NEAR(row["ratio"].get<double>(), reached / ceiling, 1e-9 * reached / ceiling) << what;
    EXPECT_EQ(row.contains("peer"), GetParam() == "gemm") << what;
  }
  EXPECT_EQ(dtypes, (std::set<std::string>{"fp32", "bf16"}));
}

INSTANTIATE_TEST_SUITE_P(Of, KernelPrograms,
                         ::testing::Values("norm", "rope", "activation", "classifier", "optimizer", "copy",
                                           "gemm", "attention"),
                         [](const auto& info) { return info.param; });

TEST(BenchPrograms, CountCyclesOnTheSimulatedCluster) {
  for (const std::string name : {"gemm", "attention"}) {
    const Json report = quick_report(name + " --backend=dsp");
    EXPECT_EQ(report["backend"], "dsp");
    EXPECT_EQ(report["simulated"], true);
    ASSERT_EQ(report["rows"].size(), 1);
    EXPECT_GT(report["rows"][0][name == "gemm" ? "cycles" : "resident_cycles"].get<int64_t>(), 0);
  }
}

TEST(BenchPrograms, SimulateCountsTasks) {
  const Json report = quick_report("simulate");
  EXPECT_GT(report["tasks_per_step"].get<int64_t>(), 0);
  EXPECT_GT(report["tasks_per_second"].get<double>(), 0);
}

TEST(BenchPrograms, RefuseWhatABackendDoesNotHave) {
  for (const auto& [words, message] : std::vector<std::pair<std::string, std::string>>{
           {"norm --backend dsp", "norm: error: --backend: expected one of host, found 'dsp'"},
           {"gemm --backend dsp --tokens 3", "gemm: error: unknown argument '--tokens'"},
           {"gemm --m 3", "gemm: error: --n is missing"},
           {"rope --model gpt2-124m", "rope: error: --model gpt2-124m: it has no rotary positions"},
           {"copy --dtype fp64", "copy: error: --dtype: expected fp32 or bf16, found 'fp64'"},
           {"copy --model bert", "copy: error: --model: expected one of gpt2-124m, llama-110m"}}) {
    const Outcome refused = outcome_of(words, true);
    EXPECT_EQ(refused.code, 2) << words;
    EXPECT_THAT(refused.output, HasSubstr(message));
  }
}

// A program whose kernels are wrong says so instead of how fast they are.
TEST(KernelBenchCheck, RefusesResultsThatDiffer) {
  KernelBench bench("copy", "host", {"--quick"}, {});
  const Values want(DType::kBF16, 10, 1), got = want.copy();
  const auto add = [&] {
    bench.add(tiny_models().front(),
              {.operation = "copy",
               .dtype = DType::kBF16,
               .work = 40,
               .run = [] {},
               .check = [&] { bench.compare("the copy", all_of(want), all_of(got), {1e-6}); }});
  };
  add();
  EXPECT_EQ(bench.report().json["rows"].size(), 1);
  static_cast<uint16_t*>(got.ref().data)[7] ^= 0x4000;
  try {
    add();
    FAIL() << "a wrong result was timed";
  } catch (const RunError& error) {
    EXPECT_THAT(error.what(), StartsWith("copy, tiny-gpt2, bf16: the copy: "));
    EXPECT_EQ(error.exit_code(), 1);
  }
}

TEST(LargestDifference, IsRelativeAndSeesEveryRow) {
  const Values want(DType::kF32, 12, 1), got = want.copy();
  EXPECT_EQ(largest_difference(all_of(want), all_of(got)), 0);
  const Rows rows{want.ref(), 3, 2, 4}, changed{got.ref(), 3, 2, 4};
  got.f32()[2] = 100;  // between the rows
  EXPECT_EQ(largest_difference(rows, changed), 0);
  got.f32()[9] = want.f32()[9] * 1.5F;
  EXPECT_GT(largest_difference(rows, changed), 0.01);
  EXPECT_LE(largest_difference(rows, changed), 0.5 + 1e-6);
  got.f32()[9] = NAN;
  EXPECT_EQ(largest_difference(rows, changed), INFINITY);
}

}  // namespace
}  // namespace trainer
