#include "app/plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "app/command.h"
#include "app/options.h"
#include "app/plan_request.h"
#include "base/file.h"
#include "base/units.h"

namespace trainer {
namespace {

constexpr const char* kPlanUsage =
    R"(usage: trainer plan CONFIG.json --platform NAME|FILE --devices N [options]

Searches how to train a model: pipeline, data and tensor-parallel sizes, ZeRO stage, micro-batch size, what is kept
for backward, passes, layers per stage. Plans that do not fit in memory are set aside, the rest ranked, the best
simulated. The model, batch and sequence length are the config's.

  --platform NAME|FILE      a name of configs/platforms, or a file (docs/platforms.md)
  --devices N
  --memory BYTES            budget per device, as 20GiB (default: the platform's)
  --plans N                 to be simulated (default 8)
  --json FILE               plans and all that were rejected, with reasons
  --write FILE              a config that 'trainer train' runs with the best plan
  --set SECTION.KEY=VALUE   replaces a value of the config
)";

std::string tokens_text(double rate) {
  return rate < 1000 ? fmt::format("{:.1f}", rate) : format_count(rate);
}

Json choice_json(const PlanChoice& c) {
  return {{"pipeline_parallel_size", c.stages},     {"data_parallel_size", c.replicas},
          {"tensor_parallel_size", c.tensor_ranks}, {"zero_stage", c.zero_stage},
          {"shard_gradients", c.shard_gradients},   {"micro_batch_size", c.micro_batch_size},
          {"micro_batches", c.micro_batches},       {"activation", name_of(c.activation)},
          {"recovery_buffers", c.recovery_buffers}, {"passes", c.passes},
          {"stage_layers", c.stage_layers}};
}

Json classes_json(const StageMemory& memory) {
  Json json;
  for (size_t c = 0; c < kMemoryClassCount; ++c)
    json[name_of(static_cast<MemoryClass>(c))] = memory.classes[c];
  return json;
}

std::string gib(int64_t bytes) { return fmt::format("{:.2f}", static_cast<double>(bytes) / kGiB); }

// Of the passes that plans differ by.
std::string passes_text(const PlanChoice& c) {
  std::string text;
  for (const std::string& pass : c.passes)
    if (is_chosen_among(pass))
      text += fmt::format("{}{}", text.empty() ? "" : "+",
                          pass == "forward_side_recovery"  ? "FSR"
                          : pass == "layer_state_pipeline" ? "LSP"
                                                           : "U-P");
  return text.empty() ? "-" : text;
}

std::string rejected_text(const std::vector<Rejection>& rejected) {
  // By what decided: how many, and the one that came nearest.
  std::map<std::string, std::pair<int, const Rejection*>> groups;
  for (const Rejection& r : rejected) {
    std::string group = name_of(r.kind);
    if (r.kind == RejectionKind::kSlower) group = fmt::format("slower: {}", r.part);
    auto& [count, nearest] = groups[group];
    ++count;
    const auto distance = [](const Rejection& one) {
      return one.kind == RejectionKind::kMemory ? static_cast<double>(one.bytes) : one.seconds;
    };
    if (!nearest || distance(r) < distance(*nearest)) nearest = &r;
  }
  std::string text;
  for (const auto& [group, entry] : groups)
    text += fmt::format("  {:<24} {:>6}   nearest: {}\n{:36}{}\n", group, entry.first,
                        describe(entry.second->choice), "", entry.second->reason);
  return text;
}

void run(std::span<const std::string> words) {
  const ConfigArguments arguments = read_config_arguments(
      words, {"--platform", "--devices", "--memory", "--plans", "--json", "--write"}, {});
  const Options& options = arguments.options;
  const Config config = read_config(arguments.config, arguments.overrides);
  const Platform platform = read_platform(options.required("--platform"));
  options.required("--devices");
  // Refuses models that are planned for only, before the search.
  if (options.has("--write") && !config.model.hugging_face.empty()) make_model_config(config);
  const auto devices = static_cast<int>(options.integer("--devices", 1, 1));
  const int64_t budget =
      options.has("--memory") ? parse_bytes(*options.find("--memory"), "--memory") : platform.memory_bytes;
  const PlanRequest request = make_plan_request(config, make_planned_model(config), devices, budget);
  PlanEffort effort;
  effort.plans = static_cast<int>(options.integer("--plans", effort.plans, 1));
  const PlanSearch search = search_plans(request, platform, effort);
  fmt::print("{} on {} devices of {}, {} per device, {} sequences of {} tokens a step\n\n{}",
             arguments.config, devices, platform.name, format_bytes(static_cast<double>(budget)),
             request.global_batch_size, request.sequence_length, plan_text(search, request));
  if (const auto file = options.find("--json"))
    write_file_atomically(*file, plan_json(search, request, platform).dump(1) + "\n");
  if (search.plans.empty()) input_error("no plan fits; see above");
  if (const auto file = options.find("--write")) {
    write_file_atomically(
        *file, config_to_json(with_plan(config, search.plans.front().choice, budget)).dump(2) + "\n");
    fmt::print("\nwrote {}: start it with {} ranks\n", *file, devices);
  }
}

}  // namespace

Json memory_json(const StageMemory& memory) {
  Json json;
  for (const Tier tier : {Tier::kLong, Tier::kMedium, Tier::kShort})
    json[name_of(tier)] = memory.tiers[static_cast<size_t>(tier)];
  json["total"] = memory.total();
  return json;
}

Json parts_json(const StepParts& parts) {
  return {{"main_path", parts.main_path},
          {"communication", parts.communication},
          {"update", parts.update},
          {"prefetch", parts.prefetch},
          {"recovery", parts.recovery}};
}

Json plan_json(const PlanSearch& search, const PlanRequest& request, const Platform& platform) {
  Json json = {{"platform", platform.name},
               {"devices", request.devices},
               {"memory_budget_bytes", request.memory_budget},
               {"global_batch_size", request.global_batch_size},
               {"sequence_length", request.sequence_length},
               {"plans", Json::array()},
               {"rejected", Json::array()}};
  int rank = 0;
  for (const Plan& plan : search.plans)
    json["plans"].push_back({{"rank", ++rank},
                             {"plan", choice_json(plan.choice)},
                             {"memory_bytes", memory_json(plan.memory)},
                             {"memory_stage", plan.memory.stage},
                             {"memory_by_class", classes_json(plan.memory)},
                             {"step_seconds", plan.parts.step_seconds},
                             {"parts", parts_json(plan.parts)},
                             {"bubble_ratio", plan.bubble_ratio},
                             {"estimated_seconds", plan.estimated_seconds},
                             {"tokens_per_second", plan.tokens_per_second}});
  for (const Rejection& r : search.rejected) {
    Json one = {{"plan", choice_json(r.choice)}, {"kind", name_of(r.kind)}, {"reason", r.reason}};
    if (r.kind == RejectionKind::kMemory) {
      one["stage"] = r.stage;
      one["memory_bytes"] = r.bytes;
    }
    if (r.kind == RejectionKind::kSlower) {
      one["part"] = r.part;
      one["step_seconds"] = r.seconds;
      one["simulated"] = r.simulated;
    }
    json["rejected"].push_back(std::move(one));
  }
  if (search.nearest)
    json["nearest"] = {{"plan", choice_json(search.nearest->choice)}, {"reason", search.nearest->reason}};
  if (!search.advice.empty()) json["advice"] = search.advice;
  return json;
}

std::string plan_text(const PlanSearch& search, const PlanRequest& request) {
  std::string text;
  if (!search.plans.empty()) {
    text += fmt::format(
        "{:>2} {:>4} {:>5} {:>3} {:>3} {:>3} {:>5} {:<15}{:<13}| {:>6} {:>6} {:>6} {:>6} {:>5} | "
        "{:>8} {:>8} {:>6} {:>6} {:>6} {:>6} | {:>8}\n",
        "", "P", "D", "T", "Z", "b", "A", "activation", "passes", "long", "medium", "short", "GiB", "stage",
        "step s", "T_1F1B", "E_comm", "E_upd", "E_pref", "E_rec", "tokens/s");
    int rank = 0;
    for (const Plan& p : search.plans) {
      const PlanChoice& c = p.choice;
      text += fmt::format(
          "{:>2} {:>4} {:>5} {:>3} {:>3} {:>3} {:>5} {:<15}{:<13}| {:>6} {:>6} {:>6} {:>6} {:>5} | "
          "{:>8.4g} {:>8.4g} {:>6.3g} {:>6.3g} {:>6.3g} {:>6.3g} | {:>8}\n",
          ++rank, c.stages, c.replicas, c.tensor_ranks,
          fmt::format("{}{}", c.zero_stage, c.shard_gradients ? "s" : ""), c.micro_batch_size,
          c.micro_batches, name_of(c.activation), passes_text(c), gib(p.memory.tiers[0]),
          gib(p.memory.tiers[1]), gib(p.memory.tiers[2]), gib(p.memory.total()), p.memory.stage, p.parts.step_seconds,
          p.parts.main_path, p.parts.communication, p.parts.update, p.parts.prefetch, p.parts.recovery,
          tokens_text(p.tokens_per_second));
    }
    text += fmt::format("\nlayers of the best plan's stages: {}\n",
                        describe_stages(search.plans.front().choice.stage_layers));
  } else {
    text += fmt::format("No plan fits {} per device.\n",
                        format_bytes(static_cast<double>(request.memory_budget)));
    if (search.nearest)
      text += fmt::format("The nearest, {}: {}.\n", describe(search.nearest->choice), search.nearest->reason);
    text += fmt::format("What would help: {}.\n", search.advice);
  }
  text += fmt::format("\n{} rejected:\n{}", search.rejected.size(), rejected_text(search.rejected));
  return text;
}

int plan_command(std::span<const std::string> arguments) {
  return run_command({"plan", kPlanUsage}, arguments, [&] { run(arguments); });
}

}  // namespace trainer
