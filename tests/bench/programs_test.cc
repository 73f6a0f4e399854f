#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <set>

#include "base/error.h"
#include "checkpoint/test_folder.h"
#include "device/cuda/cuda_device.h"
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
                                           "gemm", "attention", "simulate", "checkpoint"),
                         [](const auto& info) { return info.param; });

// Program and backend. On "simt" every kernel and copy is one that a GPU would be given, in memory that
// faults when the host touches it.
class KernelPrograms : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {
 public:
  static std::vector<std::string> backends() {
    std::vector<std::string> names = {"host", "simt"};
    if (cuda_device_count() > 0) names.push_back("cuda");
    return names;
  }
};

TEST_P(KernelPrograms, ReportCheckedRatesBesideTheirCeilings) {
  const auto& [program, backend] = GetParam();
  const bool host = backend == "host";
  const std::string words = program + " --backend " + backend + (host ? " --threads 1" : "");
  const Json report = quick_report(words);
  EXPECT_EQ(report["benchmark"], program);
  EXPECT_EQ(report["backend"], backend);
  EXPECT_EQ(report["device"].get<std::string>().starts_with("host"), host);
  EXPECT_EQ(report.contains("simulated"), backend == "simt");
  EXPECT_EQ(report["machine"].get<std::string>().ends_with("times mean nothing"), backend == "simt");
  EXPECT_THAT(report["command"].get<std::string>(), StartsWith(words + " --quick"));
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
    EXPECT_EQ(row.contains("peer"), program == "gemm" && backend != "simt") << what;
  }
  EXPECT_EQ(dtypes, (std::set<std::string>{"fp32", "bf16"}));
}

INSTANTIATE_TEST_SUITE_P(Of, KernelPrograms,
                         ::testing::Combine(::testing::Values("norm", "rope", "activation", "classifier",
                                                              "optimizer", "copy", "gemm", "attention"),
                                            ::testing::ValuesIn(KernelPrograms::backends())),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" + std::get<1>(info.param);
                         });

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

TEST(BenchPrograms, CheckpointStandsBesideTheDisk) {
  const TestFolder folder;
  const std::string words = "checkpoint --folder " + folder.path().string();
  const Json report = quick_report(words);
  EXPECT_GT(report["bytes"].get<int64_t>(), 10'000);
  ASSERT_EQ(report["rows"].size(), 2);
  for (const Json& row : report["rows"]) {
    const double reached = row["bytes_per_second"].get<double>(),
                 ceiling = row["ceiling_bytes_per_second"].get<double>();
    EXPECT_GT(reached, 0);
    EXPECT_NEAR(row["ratio"].get<double>(), reached / ceiling, 1e-9 * reached / ceiling);
  }
  const Json& background = report["background"];
  EXPECT_GT(background["step_seconds"].get<double>(), 0);
  EXPECT_GT(background["copy_seconds"].get<double>(), 0);
  EXPECT_GE(background["steps_meanwhile"].size(), 1);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "something is left there";
  const Outcome refused = outcome_of("checkpoint --folder " + (folder / "missing").string(), true);
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.output, HasSubstr("missing: no such folder"));
}

TEST(BenchPrograms, RefuseWhatABackendDoesNotHave) {
  for (const auto& [words, message] : std::vector<std::pair<std::string, std::string>>{
           {"norm --backend dsp", "norm: error: --backend: expected one of host, cuda, simt, found 'dsp'"},
           {"copy --backend simt --threads 2", "copy: error: unknown argument '--threads'"},
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

// Of one rank.
void expect_roofline(const Json& report) {
  const auto number = [](const Json& of, const char* key) { return of[key].get<double>(); };
  const double best = number(report, "roofline_seconds"), products = number(report, "gemm_flops_per_second"),
               memory = number(report, "memory_bytes_per_second");
  EXPECT_GT(memory, 0);
  EXPECT_NEAR(best, number(report, "roofline_flops") / products + number(report, "roofline_bytes") / memory,
              1e-9 * best);
  EXPECT_NEAR(number(report, "roofline_ratio"), best / number(report, "step_seconds"), 1e-9);
  EXPECT_EQ(report.contains("kernels"), report["backend"] != "cuda");
  if (!report.contains("kernels")) return;
  double seconds = 0, flops = 0;
  for (const Json& row : report["kernels"]) {
    const std::string what = row.dump();
    EXPECT_GT(row["calls"].get<int64_t>(), 0) << what;
    EXPECT_GT(number(row, "bytes"), 0) << what;
    EXPECT_NEAR(number(row, "ratio") * number(row, "seconds"),
                number(row, "flops") > 0 ? number(row, "flops") / products : number(row, "bytes") / memory,
                1e-9 * number(row, "ratio") * number(row, "seconds"))
        << what;
    seconds += number(row, "seconds");
    flops += number(row, "flops");
  }
  const auto steps = report["all_step_seconds"].get<std::vector<double>>();
  EXPECT_LT(seconds, std::accumulate(steps.begin(), steps.end(), 0.0) / static_cast<double>(steps.size()));
  EXPECT_NEAR(flops, number(report, "roofline_flops"), 1e-9 * flops) << "no product is made twice";
}

// A rank that trains on memory that the host cannot touch, with the kernels of a GPU.
TEST(BenchPrograms, TrainingStepsOnEveryBackend) {
  for (const std::string& backend : KernelPrograms::backends()) {
    const std::string words = "train_step --backend " + backend + " --model " + CONFIGS_FOLDER +
                              "/simulated-dsp.json --sequence 32 --sequences-per-step 2" +
                              (backend == "host" ? " --threads 1" : "");
    const Outcome outcome = outcome_of(words + " --json", false);
    ASSERT_EQ(outcome.code, 0) << words;
    const Json report = parse_json(outcome.output, words);
    EXPECT_EQ(report["command"], words);
    EXPECT_EQ(report["backend"], backend);
    EXPECT_EQ(report["device"].get<std::string>().starts_with("host"), backend == "host");
    EXPECT_EQ(report.contains("peak_memory_bytes"), backend == "host");
    EXPECT_EQ(report.contains("simulated"), backend == "simt");
    EXPECT_GT(report["tokens_per_second"].get<double>(), 0);
    EXPECT_GT(report["predicted_memory_bytes"].get<int64_t>(), 100'000);
    EXPECT_GT(report["gemm_flops_per_second"].get<double>(), 0);
    EXPECT_GT(report["gemm_in_turn_flops_per_second"].get<double>(), 0);
    expect_roofline(report);
  }
}

TEST(BenchPrograms, SayWhyThereIsNoCudaDevice) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "there is one";
  for (const std::string name : {"norm", "gemm", "attention", "train_step --model llama-110m"}) {
    const Outcome refused = outcome_of(name + " --backend cuda", true);
    EXPECT_EQ(refused.code, 2) << name;
    EXPECT_THAT(refused.output, HasSubstr("error: --backend cuda: " + why_no_cuda_device() + "; start on"));
  }
}

// A program whose kernels are wrong says so instead of how fast they are.
class KernelBenchCheck : public ::testing::TestWithParam<std::string> {};

TEST_P(KernelBenchCheck, RefusesResultsThatDiffer) {
  KernelBench bench("copy", GetParam(), {"--quick"}, {});
  const Values want(host_device(), DType::kBF16, 10, 1), got(bench.device(), DType::kBF16, 10, 1);
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
  change_on_host(bench.device().compute(), static_cast<uint16_t*>(got.ref().data), 10,
                 [](std::span<uint16_t> values) { values[7] ^= 0x4000; });
  try {
    add();
    FAIL() << "a wrong result was timed";
  } catch (const RunError& error) {
    EXPECT_THAT(error.what(), StartsWith("copy, tiny-gpt2, bf16: the copy: "));
    EXPECT_EQ(error.exit_code(), 1);
  }
}

INSTANTIATE_TEST_SUITE_P(On, KernelBenchCheck, ::testing::Values("host", "simt"),
                         [](const auto& info) { return info.param; });

TEST(Values, AreTheSameOnEveryDevice) {
  KernelBench bench("copy", "simt", {"--quick"}, {});
  const Values here(host_device(), DType::kF32, 100, 3, 2), there(bench.device(), DType::kF32, 100, 3, 2);
  EXPECT_EQ(here.on_host().f32(), here.f32()) << "no copy";
  const Values back = there.on_host();
  EXPECT_NE(back.f32(), there.f32());
  EXPECT_EQ(std::memcmp(back.f32(), here.f32(), 100 * sizeof(float)), 0);
}

TEST(LargestDifference, IsRelativeAndSeesEveryRow) {
  const Values want(host_device(), DType::kF32, 12, 1), got(host_device(), DType::kF32, 12, 1);
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
