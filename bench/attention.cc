// Backward of attention on the simulated DSP cluster: intermediates that stay on chip against those staged
// through DDR.
#include <algorithm>
#include <cstdio>

#include "app/command.h"
#include "app/options.h"
#include "base/error.h"
#include "base/json.h"
#include "dsp/check.h"

namespace trainer {
namespace {

constexpr const char* kUsage = R"(usage: attention [options]

Counts the cycles of causal attention's backward of one head on a simulated cluster of 24 DSPs, with the best tile
that fits its memories: with all intermediates on chip, and with those of each tile staged through DDR. Simulated: no
such machine is measured.

  --backend NAME   dsp (default)
  --sequence S     one length instead of 512, 1024, 2048, 4096 and 8192; a multiple of 16
  --head-dim D     a multiple of 16 (default 128)
  --json           rows as a JSON array on standard output

Staged: GP, GS and the sums GK_j and GV_j make a round trip through DDR for each tile. "Each part": the DSPs' parts of
GK_j and GV_j make it one by one, not summed on chip before. A short sequence is computed in fp16 in the same run and
held against double precision.
)";

double checked_error(const dsp::Machine& machine) {
  double error = 0;
  for (const dsp::Staging staging : {dsp::Staging::kResident, dsp::Staging::kDdr})
    error = std::max(error, dsp::attention_error(machine, {96, 32}, {16, 32}, staging, 1));
  if (error > dsp::kAttentionTolerance)
    run_error("gradients in fp16 are {} away from double precision, more than {}", error,
              dsp::kAttentionTolerance);
  return error;
}

Json count_row(const dsp::Machine& machine, const dsp::AttentionProblem& problem, double error) {
  Json row = {{"backend", "dsp"},
              {"simulated", true},
              {"sequence", problem.sequence},
              {"head_dim", problem.head_dim}};
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
  row["check_error"] = error;
  return row;
}

void print_table(const Json& rows, double error) {
  fmt::print("simulated DSP cluster; check against double precision: error {:.2e} of the largest value\n",
             error);
  fmt::print("{:>8} {:>9} {:>14} {:>14} {:>7} {:>17}\n", "sequence", "head dim", "resident", "DDR-staged",
             "ratio", "ratio, each part");
  for (const Json& row : rows)
    fmt::print("{:>8} {:>9} {:>14} {:>14} {:>7.3f} {:>17.3f}\n", row["sequence"].get<int64_t>(),
               row["head_dim"].get<int64_t>(), row["resident_cycles"].get<int64_t>(),
               row["ddr_staged_cycles"].get<int64_t>(), row["ratio"].get<double>(),
               row["ratio_each_part"].get<double>());
  fmt::print("in cycles; RATrain reports ratios from 1.24 to 1.54\n");
}

void run(const std::vector<std::string>& words) {
  const Options options(words, {"--backend", "--sequence", "--head-dim"}, {"--json"});
  if (const std::string backend = options.find("--backend").value_or("dsp"); backend != "dsp")
    input_error("option '--backend': '{}' is not counted here; choose dsp", backend);
  std::vector<int64_t> sequences = {512, 1024, 2048, 4096, 8192};
  if (options.has("--sequence")) sequences = {options.integer("--sequence", 0, 1, 1 << 20)};
  const int64_t head_dim = options.integer("--head-dim", 128, 1, 1 << 12);
  const dsp::Machine machine;
  const double error = checked_error(machine);
  Json rows = Json::array();
  for (const int64_t sequence : sequences) rows.push_back(count_row(machine, {sequence, head_dim}, error));
  if (options.has("--json"))
    fmt::print("{}\n", rows.dump(2));
  else
    print_table(rows, error);
}

}  // namespace
}  // namespace trainer

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  return trainer::run_command({"attention", trainer::kUsage, false, true}, words,
                              [&] { trainer::run(words); });
}
