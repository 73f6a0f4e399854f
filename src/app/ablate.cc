#include "app/ablate.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "app/ablation_report.h"
#include "app/agreement.h"
#include "app/kernels.h"
#include "app/options.h"
#include "app/parallel_command.h"
#include "app/variant_run.h"
#include "base/file.h"
#include "base/log.h"
#include "base/units.h"
#include "device/cores.h"

namespace trainer {
namespace {

constexpr const char* kAblateUsage =
    R"(usage: trainer ablate CONFIG.json [--set SECTION.KEY=VALUE ...] [options]

Measures a config's plan against itself without one mechanism at a time, and against the usual other plans, on the
same ranks and samples; alone or under mpirun:
  mpirun -n 2 build/trainer ablate configs/ablation-host.json --json ablation.json --markdown ablation.md

  --json FILE               a list of {name, step_seconds, exposed, tail_seconds, ..., losses}
  --markdown FILE           the table as a document; its picture lies beside it, ending in .svg
  --steps N                 measured steps of a run (default 5)
  --warm-up N               steps before them that are not counted (default 2)
  --rounds N                runs of each variant, in turn (default 3)
  --variants NAME,NAME,...  only these, and full
  --over-budget             measures also what does not fit device.memory_budget
  --set SECTION.KEY=VALUE   replaces a value of the config

Variants:

)";

std::string usage() {
  std::string text = kAblateUsage;
  for (const auto& [name, change] : ablation_variant_list())
    text += fmt::format("  {:<25} {}\n", name, change);
  return text;
}

struct Request {
  std::string config;
  std::vector<std::string> overrides;
  std::optional<std::string> json, markdown;
  VariantSteps steps;
  int rounds = 3;
  bool over_budget = false;
  std::vector<std::string> variants;  // empty: all
};

std::vector<std::string> chosen_variants(const std::string& list) {
  std::vector<std::string> known, chosen = {"full"};
  for (const auto& [name, change] : ablation_variant_list()) known.push_back(name);
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string name = list.substr(begin, end - begin);
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      const std::string near = nearest_name(name, known);
      input_error("--variants: there is no variant '{}'{}", name,
                  near.empty() ? "; --help lists them" : fmt::format("; did you mean '{}'?", near));
    }
    chosen.push_back(name);
    begin = end + 1;
  }
  return chosen;
}

Request parse(std::span<const std::string> words) {
  const ConfigArguments a = read_config_arguments(
      words, {"--json", "--markdown", "--steps", "--warm-up", "--rounds", "--variants"}, {"--over-budget"});
  Request r;
  r.config = a.config;
  r.overrides = a.overrides;
  r.json = a.options.find("--json");
  r.markdown = a.options.find("--markdown");
  r.over_budget = a.options.has("--over-budget");
  r.steps.warm_up = static_cast<int>(a.options.integer("--warm-up", r.steps.warm_up, 0));
  r.steps.measured = static_cast<int>(a.options.integer("--steps", r.steps.measured, 1));
  r.rounds = static_cast<int>(a.options.integer("--rounds", r.rounds, 1));
  if (const auto list = a.options.find("--variants")) r.variants = chosen_variants(*list);
  return r;
}

// The machine of rank 0.
std::string describe_machine(const MpiEnvironment& mpi, const Config& config) {
  const auto plural = [](int64_t count) { return count == 1 ? "" : "s"; };
  const int64_t cores = sysconf(_SC_NPROCESSORS_ONLN), threads = config.device.threads;
  return fmt::format("{}, {} core{}, kernels {}; {} rank{} with {} thread{} each", processor_name(), cores,
                     plural(cores), make_kernels(config.device)->name(), mpi.size(), plural(mpi.size()),
                     threads, plural(threads));
}

std::string describe_command(const MpiEnvironment& mpi, std::span<const std::string> words) {
  std::string text =
      mpi.size() > 1 ? fmt::format("mpirun -n {} trainer ablate", mpi.size()) : "trainer ablate";
  for (const std::string& word : words) text += " " + word;
  return text;
}

void write(const Request& request, AblationHeading heading, std::span<const AblationResult> results) {
  std::printf("%s", ablation_table(results).c_str());
  std::fflush(stdout);
  if (request.json) write_file_atomically(*request.json, ablation_json(results));
  if (!request.markdown) return;
  const std::filesystem::path document = *request.markdown;
  std::filesystem::path picture = document;
  picture.replace_extension(".svg");
  heading.picture = picture.filename().string();
  write_file_atomically(picture, ablation_chart(results));
  write_file_atomically(document, ablation_markdown(heading, results));
}

void check_losses(std::span<const AblationResult> results) {
  for (const AblationResult& r : results)
    if (r.measured() && !compare_losses(results.front(), r).holds())
      run_error("the losses of {} are not those of full", r.variant.name);
}

int ablate(const MpiEnvironment& mpi, std::span<const std::string> words) {
  const auto world = mpi.world();
  configure_logging(mpi.rank(), mpi.size());
  const bool speaks = mpi.rank() == 0;
  Request request;
  Config config;
  TrainingData data;
  std::vector<AblationResult> results;
  together(*world, [&] {
    request = parse(words);
    config = read_config(request.config, request.overrides);
    config.training.steps = request.steps.total();
    config.training.eval_interval = 0;
    data = open_training(config, mpi);
    for (AblationVariant& variant : ablation_variants(config, data.model, mpi.size())) {
      const auto& chosen = request.variants;
      if (chosen.empty() || std::find(chosen.begin(), chosen.end(), variant.name) != chosen.end())
        results.emplace_back().variant = std::move(variant);
    }
  });
  for (AblationResult& r : results)
    if (r.variant.why_not.empty()) plan_variant(data, *world, r);
  if (results.front().out_of_memory && !request.over_budget)
    input_error(
        "the config's own plan needs {} a rank, above key 'device.memory_budget'; --over-budget measures it",
        format_bytes(static_cast<double>(results.front().predicted_memory)));

  AblationHeading heading;
  heading.config = request.config;
  heading.command = describe_command(mpi, words);
  heading.machine = describe_machine(mpi, config);
  heading.warm_up_steps = request.steps.warm_up;
  heading.measured_steps = request.steps.measured;
  heading.rounds = request.rounds;
  // Each round begins with another variant, so that what wears off with time does not always fall on the same
  // one.
  for (int round = 0; round < request.rounds; ++round)
    for (size_t i = 0; i < results.size(); ++i) {
      AblationResult& r = results[(i + static_cast<size_t>(round)) % results.size()];
      if (r.program_hash == 0 || (r.out_of_memory && !request.over_budget)) continue;
      const std::string plan = run_variant(data, *world, request.steps, r);
      if (&r == &results.front()) heading.plan = plan;
      if (speaks)
        log_info("round {} of {}: {}: {:.1f} ms a step", round + 1, request.rounds, r.variant.name,
                 1e3 * r.rounds.back().step_seconds);
    }
  together(*world, [&] {
    if (!speaks) return;
    write(request, heading, results);
    check_losses(results);
  });
  return 0;
}

}  // namespace

int ablate_command(std::span<const std::string> arguments) {
  const std::string help = usage();
  return run_parallel_command({"ablate", help.c_str()}, arguments,
                              [&](const MpiEnvironment& mpi) { return ablate(mpi, arguments); });
}

}  // namespace trainer
