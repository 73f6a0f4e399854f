// What `trainer ablate` compares: the variants of a config, and what their measurements come to.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/config.h"
#include "runtime/waiting.h"
#include "schedule/timeline.h"
#include "sim/step_analysis.h"

namespace trainer {

struct AblationVariant {
  std::string name;
  std::string change;   // against the config's own plan, in words
  Config config;        // resolved; as the config gave it where there is no such variant
  std::string why_not;  // why there is none of this config; empty: there is
};

// "full" first: the config's own plan. `config` is resolved for `ranks`, and so are all variants: the same
// ranks share the work in other ways. Throws InputError only for a `config` that cannot run itself.
std::vector<AblationVariant> ablation_variants(const Config& config, const ModelConfig& model, int ranks);

// Names of all variants, in that order, and what each changes.
std::vector<std::pair<std::string, std::string>> ablation_variant_list();

// Resolved configs of equal model, data and optimizer with equal classes add the same numbers in the same
// order, so their losses have equal bits.
std::string arithmetic_class(const Config& config);

// One step as one rank saw it, in seconds on the clock of all ranks.
struct RankStep {
  double first_forward = 0;  // its begin
  double last_backward = 0;  // its end
  WaitLedger::StepAccount account;
};

// Steps `first` ... `first + count - 1` of one rank's timeline, without their accounts. Every one must have
// been traced.
std::vector<RankStep> rank_steps(const Timeline& timeline, int64_t first, int count);

// Medians over the measured steps of a round.
struct RoundFigures {
  double step_seconds = 0;  // from the first forward on any rank to the next step's
  // From the last backward to the next step's first forward, on the first stage, where no bubble lies between
  // them; of its slowest rank.
  double tail_seconds = 0;
  double simulated_seconds = 0;  // a step by simulation, tasks as long as their medians; NaN: not known
  // T_1F1B and what each cause adds to it, by simulation of the measured steps, each task as long as it was
  // in each of them; their mean. NaN: not known.
  StepParts replay;
  double replayed_seconds = 0;  // what these steps took: to be compared with replay.step_seconds
  ExposedTime exposed;          // cause by cause, of the rank that waited longest
};

// `ranks`: of every rank, the measured steps and the one after them. What simulation gives is NaN.
RoundFigures round_figures(const std::vector<std::vector<RankStep>>& ranks, int first_stage_ranks);

// What was measured of a variant. Bytes are those of the rank with most.
struct AblationResult {
  AblationVariant variant;
  bool out_of_memory = false;            // its arenas are larger than the budget
  std::string program;                   // front end and passes
  uint64_t program_hash = 0;             // of what is equal on all ranks; 0: was not set up
  int64_t predicted_memory = 0;          // arenas, before anything is allocated
  int64_t peak_memory = 0;               // of the arenas, up to the last byte that a task uses
  int64_t predicted_resident = 0;        // arenas, tables and the program itself
  std::optional<int64_t> resident_peak;  // VmHWM since the variant was set up; none: the system does not say
  std::vector<double> losses, gradient_norms;  // of every step from the first
  bool repeats = true;                         // all rounds gave the same bits
  std::vector<RoundFigures> rounds;

  bool measured() const { return !rounds.empty(); }
  RoundFigures median() const;  // over the rounds
};

// Of equal length, and equal in every bit: a NaN is equal to itself.
bool same_bits(const std::vector<double>& a, const std::vector<double>& b);

struct LossComparison {
  bool same_class = true, equal_bits = true;  // losses and gradient norms
  double largest_difference = 0;              // of losses, relative
  // Equal bits within an arithmetic class, else nearly equal losses.
  bool holds() const { return same_class ? equal_bits : largest_difference <= kTolerance; }
  static constexpr double kTolerance = 1e-3;
};
LossComparison compare_losses(const AblationResult& full, const AblationResult& other);

}  // namespace trainer
