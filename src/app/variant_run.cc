#include "app/variant_run.h"

#include <malloc.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <map>
#include <numeric>

#include "app/account_bytes.h"
#include "app/agreement.h"
#include "app/backend.h"
#include "app/main_path_replay.h"
#include "app/trace.h"
#include "app/training_state.h"
#include "comm/collectives.h"
#include "device/arena.h"
#include "schedule/passes.h"
#include "sim/measured_costs.h"
#include "sim/step_analysis.h"

namespace trainer {
namespace {

int64_t sum(const TierBytes& tiers) { return std::accumulate(tiers.begin(), tiers.end(), int64_t{0}); }

// Bytes of all arenas of a rank up to the last one that a task uses.
int64_t bytes_used(const StepGraph& graph, int rank) {
  std::map<ArenaKey, int64_t> ends;
  for (const Task& task : graph.tasks)
    for (const Use& use : task.uses) {
      const Buffer& b = graph.buffers[static_cast<size_t>(use.buffer)];
      if (b.rank != rank) continue;
      int64_t& end = ends[arena_of(b)];
      end = std::max(end, b.offset + graph.slot_bytes(b) * b.versions);
    }
  int64_t bytes = 0;
  for (const auto& [arena, end] : ends) bytes += end;
  return bytes;
}

// Gives back what earlier variants left and has the system forget this process's VmHWM. False where it does
// not offer that.
bool forget_resident_peak() {
  malloc_trim(0);
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return file.good();
}

// The measured steps of all ranks and the one after them; only on rank 0.
std::vector<std::vector<RankStep>> gather_steps(const std::vector<RankStep>& mine, Communicator& world) {
  std::string bytes;
  for (const RankStep& step : mine) {
    put_bytes(bytes, step.first_forward);
    put_bytes(bytes, step.last_backward);
    put_bytes(bytes, step.account);
  }
  std::vector<std::vector<RankStep>> ranks;
  const auto all = gather(world, bytes, 0);
  for (std::string_view rest : all) {
    auto& steps = ranks.emplace_back(mine.size());
    for (RankStep& step : steps) {
      take_bytes(rest, step.first_forward);
      take_bytes(rest, step.last_backward);
      take_bytes(rest, step.account);
    }
  }
  return ranks;
}

// Steps of the program of all ranks on virtual time, tasks as long as the traced ones: `steps` from training
// step `first` on.
void simulate_round(const Problem& problem, const Timeline& measured, int first, int steps,
                    RoundFigures& round) {
  if (problem.world_size() > kRanksSimulated) return;
  const auto [graph, costs] = measured_program(problem, measured);
  round.simulated_seconds = steady_step_seconds(graph, costs);
  round.replay = mean_step_parts(graph, replayed_costs(graph, costs, measured, first, steps), steps);
}

void record_losses(TrainingRank& rank, int steps, AblationResult& result) {
  std::vector<double> losses, norms;
  for (int s = 1; s <= steps; ++s) {
    const StepResult step = rank.take_result(s);
    losses.push_back(step.valid_tokens > 0 ? step.loss : std::nan(""));
    norms.push_back(step.gradient_norm);
  }
  const bool first = result.losses.empty();
  if (!first)
    result.repeats =
        result.repeats && same_bits(losses, result.losses) && same_bits(norms, result.gradient_norms);
  if (!first) return;
  result.losses = std::move(losses);
  result.gradient_norms = std::move(norms);
}

void record_memory(const TrainingRank& rank, const MemoryPlan& plan, bool peak_is_own, Communicator& world,
                   AblationResult& result) {
  std::array<double, 4> most{static_cast<double>(bytes_used(rank.graph(), world.rank())),
                             static_cast<double>(plan.total()), static_cast<double>(resident_memory().peak),
                             peak_is_own ? 0.0 : 1.0};
  max_over_ranks(world, most);
  result.peak_memory = static_cast<int64_t>(most[0]);
  result.predicted_resident = static_cast<int64_t>(most[1]);
  result.resident_peak.reset();
  if (most[3] == 0) result.resident_peak = static_cast<int64_t>(most[2]);
}

}  // namespace

void plan_variant(const TrainingData& data, Communicator& world, AblationResult& result) {
  const Config& config = result.variant.config;
  std::array<double, 1> need{0};
  together(world, [&] {
    const RankBackend backend = make_backend(config, world);
    const Model model(data.model, config.data.sequence_length, tensor_part(config, world.rank()));
    const Problem problem = make_problem(config, model, *backend.kernels, {world.rank()});
    const StepGraph graph = build_step_graph(problem);
    result.program = graph.provenance;
    result.program_hash = problem.hash();
    need[0] = static_cast<double>(sum(RankMemory::plan(graph, {}, world.rank())));
  });
  max_over_ranks(world, need);
  result.predicted_memory = static_cast<int64_t>(need[0]);
  const int64_t budget = config.device.memory_budget.bytes;
  result.out_of_memory = budget > 0 && result.predicted_memory > budget;
}

std::string run_variant(const TrainingData& data, Communicator& world, const VariantSteps& steps,
                        AblationResult& result) {
  Config config = result.variant.config;
  if (result.out_of_memory) config.device.memory_budget.bytes = 0;
  config.run.trace_steps.resize(static_cast<size_t>(steps.measured) + 1);
  std::iota(config.run.trace_steps.begin(), config.run.trace_steps.end(), steps.warm_up + 1);

  const bool peak_is_own = forget_resident_peak();
  std::unique_ptr<TrainingRank> rank;
  together(world, [&] {
    rank = std::make_unique<TrainingRank>(config, data.model, make_backend(config, world), world, data.train,
                                          nullptr);
  });
  const MemoryPlan plan = rank->memory_plan();
  together(world, [&] { rank->allocate(); });
  TrainingState(config, data, *rank, world).initialize();
  rank->run(1, steps.total(), nullptr);

  record_losses(*rank, steps.total(), result);
  const Timeline timeline = rank->take_timeline();
  auto mine = rank_steps(timeline, steps.warm_up + 1, steps.measured + 1);
  for (size_t s = 0; s < mine.size(); ++s)
    mine[s].account = rank->take_account(steps.warm_up + 1 + static_cast<int64_t>(s));
  record_memory(*rank, plan, peak_is_own, world, result);
  const auto ranks = gather_steps(mine, world);
  Timeline whole;
  if (world.size() <= kRanksSimulated) whole = gather_timeline(world, timeline);
  if (world.rank() == 0) {
    const Problem& problem = rank->problem();
    RoundFigures& round =
        result.rounds.emplace_back(round_figures(ranks, problem.replicas * problem.tensor_ranks));
    simulate_round(problem, whole, steps.warm_up + 1, steps.measured + 1, round);
  }
  return rank->describe_plan();
}

}  // namespace trainer
