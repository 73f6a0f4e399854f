#include "app/ablation.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "app/config_check.h"
#include "base/error.h"
#include "base/statistics.h"

namespace trainer {
namespace {

void drop(Config& config, const char* pass) { std::erase(config.schedule.passes, pass); }

// Half of the replicas or, where they cannot be halved, of the stages become tensor-parallel ranks.
void shift_to_tensor_ranks(Config& config) {
  ParallelSection& p = config.parallel;
  if (p.data_parallel_size % 2 == 0) {
    p.data_parallel_size /= 2;
  } else if (p.pipeline_parallel_size % 2 == 0) {
    p.pipeline_parallel_size /= 2;
    p.stage_layers.clear();
  } else {
    input_error("{} replicas of {} stages: neither can be halved in favour of tensor-parallel ranks",
                p.data_parallel_size, p.pipeline_parallel_size);
  }
  if (p.tensor_parallel_size == 1) p.sequence_parallel.reset();
  p.tensor_parallel_size *= 2;
}

struct Recipe {
  const char* name;
  const char* change;
  void (*apply)(Config&);
};

constexpr Recipe kRecipes[] = {
    {"full", "the config's own plan", [](Config&) {}},
    {"no_layer_state_pipeline", "without the pass layer_state_pipeline",
     [](Config& c) { drop(c, "layer_state_pipeline"); }},
    {"no_update_prefetch", "without the pass update_prefetch", [](Config& c) { drop(c, "update_prefetch"); }},
    {"no_forward_side_recovery", "without the pass forward_side_recovery",
     [](Config& c) { drop(c, "forward_side_recovery"); }},
    {"baseline_1f1b", "no passes, activation full_save, zero_stage 0",
     [](Config& c) {
       c.schedule.passes.clear();
       c.schedule.activation = ActivationPolicy::kFullSave;
       c.parallel.zero_stage = 0;
       c.parallel.shard_gradients = false;
     }},
    {"backward_checkpoint", "activation checkpoint, without the pass forward_side_recovery",
     [](Config& c) {
       c.schedule.activation = ActivationPolicy::kCheckpoint;
       drop(c, "forward_side_recovery");
     }},
    {"full_save", "activation full_save",
     [](Config& c) { c.schedule.activation = ActivationPolicy::kFullSave; }},
    {"tp_heavy", "tensor_parallel_size doubled, half as many replicas or stages", shift_to_tensor_ranks},
    {"zero3_heavy", "zero_stage 3", [](Config& c) { c.parallel.zero_stage = 3; }},
};

constexpr double ExposedTime::*kCauses[] = {&ExposedTime::bubble,    &ExposedTime::boundary,
                                            &ExposedTime::grad_sync, &ExposedTime::update,
                                            &ExposedTime::prefetch,  &ExposedTime::recovery};

constexpr double StepParts::*kReplayParts[] = {&StepParts::step_seconds,  &StepParts::main_path,
                                               &StepParts::communication, &StepParts::update,
                                               &StepParts::prefetch,      &StepParts::recovery};

// The median of each figure by itself.
RoundFigures medians(const std::vector<RoundFigures>& all) {
  const auto of = [&](auto&& figure) {
    std::vector<double> values;
    for (const RoundFigures& one : all) values.push_back(figure(one));
    const bool known = std::none_of(values.begin(), values.end(), [](double v) { return std::isnan(v); });
    return known ? median(std::move(values)) : std::nan("");
  };
  RoundFigures m;
  m.step_seconds = of([](const RoundFigures& f) { return f.step_seconds; });
  m.tail_seconds = of([](const RoundFigures& f) { return f.tail_seconds; });
  m.simulated_seconds = of([](const RoundFigures& f) { return f.simulated_seconds; });
  for (const auto part : kReplayParts)
    m.replay.*part = of([&](const RoundFigures& f) { return f.replay.*part; });
  m.replayed_seconds = of([](const RoundFigures& f) { return f.replayed_seconds; });
  for (const auto cause : kCauses) {
    m.exposed.*cause = of([&](const RoundFigures& f) { return f.exposed.*cause; });
  }
  return m;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> ablation_variant_list() {
  std::vector<std::pair<std::string, std::string>> list;
  for (const Recipe& recipe : kRecipes) list.emplace_back(recipe.name, recipe.change);
  return list;
}

std::vector<AblationVariant> ablation_variants(const Config& config, const ModelConfig& model, int ranks) {
  std::vector<AblationVariant> variants;
  for (const Recipe& recipe : kRecipes) {
    AblationVariant v{recipe.name, recipe.change, config, ""};
    try {
      recipe.apply(v.config);
      check_config(v.config, fmt::format("variant {}", v.name));
      resolve_parallel(v.config, model, ranks);
    } catch (const InputError& error) {
      if (variants.empty()) throw;
      v.config = config;
      v.why_not = error.what();
    }
    variants.push_back(std::move(v));
  }
  return variants;
}

std::string arithmetic_class(const Config& config) {
  const ParallelSection& p = config.parallel;
  std::string text = fmt::format("tensor {}", p.tensor_parallel_size);
  if (p.tensor_parallel_size > 1 && p.sequence_parallel.value_or(true)) text += " by tokens";
  if (p.reproducible_group > 0) return text + fmt::format(", replicas as {}", p.reproducible_group);
  text += fmt::format(", replicas {}", p.data_parallel_size);
  if (p.shard_gradients && p.data_parallel_size > 1) text += " summed by micro-batch";
  return text;
}

std::vector<RankStep> rank_steps(const Timeline& timeline, int64_t first, int count) {
  std::vector<RankStep> steps(static_cast<size_t>(count), {INFINITY, -INFINITY, {}});
  for (const TimelineEvent& e : timeline.events) {
    if (e.step < first || e.step >= first + count) continue;
    RankStep& step = steps[static_cast<size_t>(e.step - first)];
    if (e.kind == "Forward") step.first_forward = std::min(step.first_forward, e.begin);
    if (e.kind == "Backward") step.last_backward = std::max(step.last_backward, e.end);
  }
  for (const RankStep& step : steps)
    require(std::isfinite(step.first_forward) && std::isfinite(step.last_backward),
            "a measured step was not traced");
  return steps;
}

RoundFigures round_figures(const std::vector<std::vector<RankStep>>& ranks, int first_stage_ranks) {
  const auto begin = [&](size_t step) {
    double earliest = INFINITY;
    for (const auto& rank : ranks) earliest = std::min(earliest, rank[step].first_forward);
    return earliest;
  };
  std::vector<RoundFigures> steps;
  for (size_t s = 0; s + 1 < ranks.front().size(); ++s) {
    RoundFigures step;
    step.step_seconds = begin(s + 1) - begin(s);
    for (const auto& rank : ranks) {
      for (const auto cause : kCauses) {
        const double seconds = rank[s].account.exposed.*cause;
        step.exposed.*cause = std::max(step.exposed.*cause, seconds);
      }
    }
    for (size_t r = 0; r < static_cast<size_t>(first_stage_ranks); ++r)
      step.tail_seconds =
          std::max(step.tail_seconds, ranks[r][s + 1].first_forward - ranks[r][s].last_backward);
    steps.push_back(step);
  }
  RoundFigures round = medians(steps);
  round.simulated_seconds = std::nan("");
  for (const auto part : kReplayParts) round.replay.*part = std::nan("");
  const auto end = [&](size_t step) {
    double latest = 0;
    for (const auto& rank : ranks) latest = std::max(latest, rank[step].last_backward);
    return latest;
  };
  const size_t last = ranks.front().size() - 1;
  round.replayed_seconds = (end(last) - end(0)) / static_cast<double>(last);
  return round;
}

RoundFigures AblationResult::median() const { return medians(rounds); }

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

LossComparison compare_losses(const AblationResult& full, const AblationResult& other) {
  LossComparison c;
  c.same_class = arithmetic_class(full.variant.config) == arithmetic_class(other.variant.config);
  c.equal_bits = full.repeats && other.repeats && same_bits(full.losses, other.losses) &&
                 same_bits(full.gradient_norms, other.gradient_norms);
  if (full.losses.size() != other.losses.size()) c.largest_difference = INFINITY;
  for (size_t i = 0; i < std::min(full.losses.size(), other.losses.size()); ++i) {
    const double ours = other.losses[i], theirs = full.losses[i];
    if (std::isnan(ours) && std::isnan(theirs)) continue;
    const double difference = std::abs(ours - theirs) / std::abs(theirs);
    c.largest_difference = std::max(c.largest_difference, std::isnan(difference) ? INFINITY : difference);
  }
  return c;
}

}  // namespace trainer
