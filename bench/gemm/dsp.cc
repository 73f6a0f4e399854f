// Matrix products on the simulated DSP cluster: counted cycles beside the published figures.
#include <cstdio>

#include "app/options.h"
#include "base/error.h"
#include "base/json.h"
#include "dsp/check.h"
#include "dsp/published.h"
#include "gemm/backends.h"
#include "support/dsp_report.h"

namespace trainer {
namespace {

dsp::GemmProblem read_problem(const Options& options) {
  const auto length = [&](const char* name) {
    options.required(name);
    return options.integer(name, 0, 1, 1 << 20);
  };
  return {.m = length("--m"), .k = length("--k"), .n = length("--n")};
}

std::vector<dsp::GemmProblem> read_problems(const Options& options) {
  if (options.has("--quick")) return {{.m = 48, .k = 64, .n = 96}};
  if (options.has("--m") || options.has("--k") || options.has("--n")) return {read_problem(options)};
  std::vector<dsp::GemmProblem> problems;
  for (const dsp::PublishedGemm& published : dsp::kPublishedGemms) problems.push_back(published.problem);
  return problems;
}

double checked_error(const dsp::Machine& machine) {
  const dsp::GemmProblem small{.m = 100, .k = 192, .n = 288};
  const double error = dsp::gemm_error(machine, small, {2, 32, 96, 96, 192}, 1);
  if (error > dsp::kGemmTolerance)
    run_error("the product in fp16 is {} away from double precision, more than {}", error,
              dsp::kGemmTolerance);
  return error;
}

Json published_row(const dsp::GemmProblem& p) {
  for (const dsp::PublishedGemm& published : dsp::kPublishedGemms)
    if (published.problem.m == p.m && published.problem.k == p.k && published.problem.n == p.n)
      return {{"mac_utilisation", published.utilisation / 100},
              {"tera_macs_per_second", published.tera_macs_per_second},
              {"milliseconds", published.milliseconds}};
  return nullptr;
}

Json count_row(const dsp::Machine& machine, const dsp::GemmProblem& p) {
  const dsp::GemmTile tile = search_gemm_tile(machine, p);
  const dsp::GemmResult result = run_gemm(machine, p, tile);
  const double utilisation = result.utilisation(machine, p);
  return {{"m", p.m},
          {"k", p.k},
          {"n", p.n},
          {"mac_utilisation", utilisation},
          {"tera_macs_per_second", utilisation * machine.peak_macs_per_second / 1e12},
          {"milliseconds", machine.seconds(result.count.cycles) * 1e3},
          {"cycles", result.count.cycles},
          {"compute_cycles", result.count.compute_cycles},
          {"ddr_bytes", result.count.ddr_bytes},
          {"on_chip_bytes", result.count.on_chip_bytes},
          {"tile",
           {{"rows", tile.rows},
            {"depth", tile.depth},
            {"columns", tile.columns},
            {"panel_depth", tile.panel_depth},
            {"resident_columns", tile.resident_columns}}},
          {"published", published_row(p)}};
}

void print_gemm(const Json& report) {
  fmt::print("{}; check against double precision: error {:.2e} of the largest value\n",
             report["machine"].get<std::string>(), report["check_error"].get<double>());
  fmt::print("{:>6} {:>6} {:>6} {:>8} {:>10} {:>9} {:>8}  {}\n", "m", "k", "n", "MAC use", "published",
             "TMAC/s", "ms", "tile M2 x K2 x N2, Kg, resident columns");
  for (const Json& row : report["rows"]) {
    const Json &tile = row["tile"], &published = row["published"];
    const std::string figure =
        published.is_null() ? "-" : fmt::format("{:.2f} %", published["mac_utilisation"].get<double>() * 100);
    fmt::print("{:>6} {:>6} {:>6} {:>6.2f} % {:>10} {:>9.3f} {:>8.2f}  {} x {} x {}, {}, {}\n",
               row["m"].get<int64_t>(), row["k"].get<int64_t>(), row["n"].get<int64_t>(),
               row["mac_utilisation"].get<double>() * 100, figure, row["tera_macs_per_second"].get<double>(),
               row["milliseconds"].get<double>(), tile["rows"].get<int64_t>(), tile["depth"].get<int64_t>(),
               tile["columns"].get<int64_t>(), tile["panel_depth"].get<int64_t>(),
               tile["resident_columns"].get<int64_t>());
  }
}

}  // namespace

Report gemm_on_dsp(const Words& words) {
  const Options options(words, {"--m", "--k", "--n"}, {"--quick"});
  const dsp::Machine machine;
  Json report = dsp_report("gemm", words, checked_error(machine));
  for (const dsp::GemmProblem& problem : read_problems(options))
    report["rows"].push_back(count_row(machine, problem));
  return {std::move(report), print_gemm};
}

}  // namespace trainer
