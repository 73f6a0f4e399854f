// Backward of attention on the simulated DSP cluster: intermediates that stay on chip against those staged
// through DDR.
#include <algorithm>
#include <cstdio>

#include "app/options.h"
#include "attention/backends.h"
#include "base/error.h"
#include "base/json.h"
#include "dsp/check.h"
#include "support/dsp_report.h"

namespace trainer {
namespace {

double checked_error(const dsp::Machine& machine) {
  double error = 0;
  for (const dsp::Staging staging : {dsp::Staging::kResident, dsp::Staging::kDdr})
    error = std::max(error, dsp::attention_error(machine, {96, 32}, {16, 32}, staging, 1));
  if (error > dsp::kAttentionTolerance)
    run_error("gradients in fp16 are {} away from double precision, more than {}", error,
              dsp::kAttentionTolerance);
  return error;
}

Json count_row(const dsp::Machine& machine, const dsp::AttentionProblem& problem) {
  Json row = {{"sequence", problem.sequence}, {"head_dim", problem.head_dim}};
  Json details = Json::object();
  for (const auto& [name, staging] : {std::pair{"resident", dsp::Staging::kResident},
                                      {"ddr_staged", dsp::Staging::kDdr},
                                      {"ddr_staged_each_part", dsp::Staging::kDdrEachPart}}) {
    const dsp::AttentionTile tile = search_attention_tile(machine, problem, staging);
    const dsp::Count count = run_attention_backward(machine, problem, tile, staging).count;
    row[std::string(name) + "_cycles"] = count.cycles;
    details[name] = {{"queries", tile.queries},
                     {"keys", tile.keys},
                     {"compute_cycles", count.compute_cycles},
                     {"ddr_bytes", count.ddr_bytes},
                     {"on_chip_bytes", count.on_chip_bytes}};
  }
  const auto ratio = [&](const char* name) {
    return row[name].get<double>() / row["resident_cycles"].get<double>();
  };
  row["ratio"] = ratio("ddr_staged_cycles");
  row["ratio_each_part"] = ratio("ddr_staged_each_part_cycles");
  row["details"] = std::move(details);
  return row;
}

void print_attention(const Json& report) {
  fmt::print("{}; check against double precision: error {:.2e} of the largest value\n",
             report["machine"].get<std::string>(), report["check_error"].get<double>());
  fmt::print("{:>8} {:>9} {:>14} {:>14} {:>7} {:>17}\n", "sequence", "head dim", "resident", "DDR-staged",
             "ratio", "ratio, each part");
  for (const Json& row : report["rows"])
    fmt::print("{:>8} {:>9} {:>14} {:>14} {:>7.3f} {:>17.3f}\n", row["sequence"].get<int64_t>(),
               row["head_dim"].get<int64_t>(), row["resident_cycles"].get<int64_t>(),
               row["ddr_staged_cycles"].get<int64_t>(), row["ratio"].get<double>(),
               row["ratio_each_part"].get<double>());
  fmt::print("in cycles; RATrain reports ratios from 1.24 to 1.54\n");
}

}  // namespace

Report attention_on_dsp(const Words& words) {
  const Options options(words, {"--sequence", "--head-dim"}, {"--quick"});
  std::vector<int64_t> sequences = {512, 1024, 2048, 4096, 8192};
  if (options.has("--quick")) sequences = {64};
  if (options.has("--sequence")) sequences = {options.integer("--sequence", 0, 1, 1 << 20)};
  const int64_t head_dim = options.integer("--head-dim", 128, 1, 1 << 12);
  const dsp::Machine machine;
  Json report = dsp_report("attention", words, checked_error(machine));
  for (const int64_t sequence : sequences) report["rows"].push_back(count_row(machine, {sequence, head_dim}));
  return {std::move(report), print_attention};
}

}  // namespace trainer
