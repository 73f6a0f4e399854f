#include "app/layer_profile.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "app/account_bytes.h"
#include "app/kernels.h"
#include "app/training_rank.h"
#include "base/error.h"
#include "base/statistics.h"
#include "comm/in_process.h"
#include "data/synthetic_source.h"

namespace trainer {
namespace {

constexpr int kMicroBatches = 3;  // the first, and two that add to its gradients
constexpr int kMicroBatchesPerStage = 2;

// Without what a rank did by itself when another had already come to its end: it then had the machine more
// to itself than in training. All began together.
void keep_common(std::vector<TimelineEvent>& events, Communicator& world) {
  double begin = INFINITY, end = 0;
  for (const TimelineEvent& e : events) {
    begin = std::min(begin, e.begin);
    end = std::max(end, e.end);
  }
  double shortest = begin - end;
  max_over_ranks(world, std::span(&shortest, 1));
  std::erase_if(events, [&](const TimelineEvent& e) { return e.end - begin > -shortest; });
}

// What a rank recorded of a program whose stages are ranks in a row.
std::vector<TimelineEvent> record(const Config& config, const ModelConfig& model, Communicator& world,
                                  int steps, std::vector<LayerCatalogue>& layers) {
  const auto stages = static_cast<int>(config.parallel.pipeline_parallel_size);
  const auto ranks = stages > 1 ? world.split(world.rank() / stages, world.rank())
                                : std::move(make_in_process_group(1).front());
  const auto& t = config.training;
  const auto samples = std::make_shared<SyntheticSource>(config.data.sequence_length, model.vocabulary_size,
                                                         t.seed, 0, (steps + 1) * t.global_batch_size);
  TrainingRank rank(config, model, make_kernels(config.device), *ranks, samples, nullptr);
  rank.allocate();
  rank.initialize_random();
  world.barrier();
  rank.run(1, 1 + steps, nullptr);
  std::vector<TimelineEvent> events = rank.take_timeline().events;
  if (stages == 1) keep_common(events, world);
  layers = rank.problem().layers;
  return events;
}

using Seconds = double MeasuredLayer::*;

// Which of a layer's times the lengths of tasks are.
class TimeOfTask {
 public:
  explicit TimeOfTask(const std::vector<TimelineEvent>& events) {
    for (const TimelineEvent& e : events)
      if (e.kind == "Recover") recovered_.insert(pass_of(e));
  }
  // Null: none of them.
  Seconds operator()(const TimelineEvent& e) const {
    const bool first = e.micro_batch == 0, recovered = recovered_.count(pass_of(e)) > 0;
    if (e.layer < 0) return nullptr;
    if (e.kind == "Forward")
      return recovered ? (first ? &MeasuredLayer::first_recovered_forward_seconds
                                : &MeasuredLayer::recovered_forward_seconds)
                       : (first ? &MeasuredLayer::first_forward_seconds : &MeasuredLayer::forward_seconds);
    if (e.kind == "Backward")
      return recovered ? (first ? &MeasuredLayer::first_recovered_backward_seconds
                                : &MeasuredLayer::recovered_backward_seconds)
                       : (first ? &MeasuredLayer::first_backward_seconds : &MeasuredLayer::backward_seconds);
    if (e.kind == "Recover") return &MeasuredLayer::recover_seconds;
    if (e.kind == "UpdateShard") return &MeasuredLayer::update_seconds;
    if (e.kind == "PrefetchW") return &MeasuredLayer::refresh_seconds;
    if (e.kind == "GradNorm") return &MeasuredLayer::norm_seconds;
    return nullptr;
  }

 private:
  static std::tuple<int, int, int> pass_of(const TimelineEvent& e) {
    return {e.step, e.layer, e.micro_batch};
  }
  std::set<std::tuple<int, int, int>> recovered_;
};

constexpr Seconds kTimes[] = {&MeasuredLayer::forward_seconds,
                              &MeasuredLayer::first_forward_seconds,
                              &MeasuredLayer::backward_seconds,
                              &MeasuredLayer::first_backward_seconds,
                              &MeasuredLayer::recovered_forward_seconds,
                              &MeasuredLayer::first_recovered_forward_seconds,
                              &MeasuredLayer::recovered_backward_seconds,
                              &MeasuredLayer::first_recovered_backward_seconds,
                              &MeasuredLayer::recover_seconds,
                              &MeasuredLayer::update_seconds,
                              &MeasuredLayer::refresh_seconds,
                              &MeasuredLayer::norm_seconds};

// The compute lane's, in the order of their begins.
void keep_compute(std::vector<TimelineEvent>& events) {
  std::erase_if(events, [](const TimelineEvent& e) { return e.lane != "compute"; });
  std::sort(events.begin(), events.end(), [](const auto& a, const auto& b) {
    return std::tie(a.step, a.begin) < std::tie(b.step, b.begin);
  });
}

// Nothing is waited for between two such tasks.
bool of_one_pass(const TimelineEvent& before, const TimelineEvent& after) {
  return before.step == after.step && before.micro_batch == after.micro_batch && before.kind == after.kind;
}

// What all ranks had at the same time. Three digits are enough.
Pace gather_pace(Communicator& world, const std::vector<double>& mine) {
  Pace pace;
  pace.piece_seconds = kPieceSeconds;
  std::string bytes;
  put_bytes(bytes, mine);
  size_t least = mine.size();
  for (std::string_view rest : all_gather_bytes(world, bytes)) {
    std::vector<double>& pieces = pace.ranks.emplace_back();
    take_bytes(rest, pieces);
    for (double& piece : pieces) piece = std::round(1e3 * piece) / 1e3;
    least = std::min(least, pieces.size());
  }
  for (auto& pieces : pace.ranks) pieces.resize(least);
  if (least == 0) pace.ranks.clear();
  return pace;
}

}  // namespace

LayerProfile summarise_layers(const RecordedProgram& program, std::vector<TimelineEvent> events) {
  std::map<LayerShape, std::array<std::vector<double>, std::size(kTimes)>> samples;
  for (size_t layer = 0; layer < program.layers.size(); ++layer)
    samples[program.shape(static_cast<int>(layer))];
  std::vector<double> gaps;
  keep_compute(events);
  const TimeOfTask time_of(events);
  for (size_t i = 0; i < events.size(); ++i) {
    const TimelineEvent& e = events[i];
    if (i > 0 && of_one_pass(events[i - 1], e)) gaps.push_back(e.begin - events[i - 1].end);
    const auto time = std::find(std::begin(kTimes), std::end(kTimes), time_of(e));
    if (time == std::end(kTimes)) continue;
    samples[program.shape(e.layer)][static_cast<size_t>(time - std::begin(kTimes))].push_back(e.end -
                                                                                              e.begin);
  }
  LayerProfile profile;
  if (!gaps.empty()) profile.task_overhead_seconds = std::max(0.0, median(gaps));
  for (const auto& [shape, lists] : samples) {
    MeasuredLayer& m = profile.layers.emplace_back();
    m.shape = shape;
    for (size_t t = 0; t < lists.size(); ++t)
      if (!lists[t].empty()) m.*kTimes[t] = median(lists[t]);
  }
  return profile;
}

void average_over_ranks(LayerProfile& profile, Communicator& world) {
  const auto each = [&](auto&& visit) {
    for (MeasuredLayer& m : profile.layers)
      for (const Seconds time : kTimes) visit(m.*time);
  };
  std::vector<double> sums{profile.task_overhead_seconds}, counts{1};
  each([&](double value) {
    sums.push_back(std::max(0.0, value));
    counts.push_back(value >= 0 ? 1 : 0);
  });
  sum_over_ranks(world, sums);
  sum_over_ranks(world, counts);
  profile.task_overhead_seconds = sums[0] / counts[0];
  size_t i = 1;
  each([&](double& value) {
    value = counts[i] > 0 ? sums[i] / counts[i] : -1;
    ++i;
  });
}

std::vector<double> pieces_of_work(const LayerProfile& profile, const RecordedProgram& program,
                                   std::vector<TimelineEvent> events) {
  keep_compute(events);
  const TimeOfTask time_of(events);
  std::vector<double> pieces;
  double even = 0, taken = 0;
  for (const TimelineEvent& e : events) {
    const Seconds time = time_of(e);
    if (!time) continue;
    const LayerShape shape = program.shape(e.layer);
    const auto m = std::find_if(profile.layers.begin(), profile.layers.end(),
                                [&](const MeasuredLayer& one) { return one.shape == shape; });
    even += (*m).*time;
    taken += e.end - e.begin;
    // A long task is several pieces of one pace.
    for (const double pace = taken / even; even >= kPieceSeconds; even -= kPieceSeconds) {
      pieces.push_back(pace);
      taken -= pace * kPieceSeconds;
    }
  }
  return pieces;
}

int64_t profiled_blocks(const Config& config, const ModelConfig& model, int64_t memory_bytes, int stages) {
  const Model whole(model, config.data.sequence_length);
  require(stages <= model.num_layers, "{} stages of {} blocks", stages, model.num_layers);
  // Masters, moments, gradients and working weights; what forward leaves before the first backward.
  const auto bytes = [&](int layer) {
    const LayerCatalogue c = whole.layer(layer).catalogue(
        config.training.micro_batch_size, config.data.sequence_length, config.precision.compute);
    return 20 * c.parameters + stages * (c.saved_bytes() + c.output_bytes);
  };
  const int64_t left = memory_bytes - bytes(0) - bytes(whole.layer_count() - 1);
  const int64_t most = std::min<int64_t>(model.num_layers, kProfiledBlocks) / stages;
  return stages * std::clamp<int64_t>(left / bytes(1), 1, most);
}

int profiled_stages(int ranks, const ModelConfig& model) {
  auto stages = static_cast<int>(std::min<int64_t>({ranks, kProfiledBlocks, model.num_layers}));
  while (ranks % stages != 0) --stages;
  return stages;
}

Config profiled_program(const Config& config, int stages) {
  Config one = config;
  one.parallel = {};
  one.parallel.pipeline_parallel_size = stages;
  const int micro_batches = stages > 1 ? kMicroBatchesPerStage * stages : kMicroBatches;
  one.training.global_batch_size = micro_batches * one.training.micro_batch_size;
  one.device.memory_budget = {};
  one.schedule.passes.clear();
  one.schedule.last_stage_keeps = false;
  one.run.trace_steps.clear();
  return one;
}

LayerProfile measure_layers(const Config& config, const ModelConfig& model, Communicator& world, int stages,
                            int steps, int64_t memory_bytes) {
  Config one = profiled_program(config, stages);
  ModelConfig few = model;
  // Ranks of a pipeline run the same one, also where one has less memory.
  auto least = -static_cast<double>(memory_bytes);
  max_over_ranks(world, std::span(&least, 1));
  few.num_layers = profiled_blocks(config, model, static_cast<int64_t>(-least) / 2, stages);
  one.training.steps = steps + 1;
  for (int step = 2; step <= steps + 1; ++step) one.run.trace_steps.push_back(step);
  resolve_parallel(one, few, stages);

  // What forward writes and backward finds in the caches differs with and without recovery.
  std::vector<TimelineEvent> events;
  RecordedProgram program{.layers = {},
                          .element_bytes = static_cast<int64_t>(size_of(one.precision.compute)),
                          .pipelined = stages > 1};
  for (const ActivationPolicy policy : {ActivationPolicy::kFullSave, ActivationPolicy::kCheckpoint}) {
    one.schedule.activation = policy;
    const int offset = policy == ActivationPolicy::kFullSave ? 0 : steps + 1;
    for (TimelineEvent& event : record(one, few, world, steps, program.layers)) {
      event.step += offset;
      events.push_back(std::move(event));
    }
  }
  LayerProfile profile = summarise_layers(program, events);
  average_over_ranks(profile, world);
  profile.pace = gather_pace(world, pieces_of_work(profile, program, std::move(events)));
  return profile;
}

void set_efficiencies(Platform& p) {
  double forward = 0, backward = 0, ideal = 0;
  for (const MeasuredLayer& m : p.measured) {
    if (m.shape.layer != "block") continue;
    ideal += m.shape.forward_flops / p.flops_per_second(m.shape.precision);
    forward += m.forward_seconds;
    backward += m.backward_seconds;
  }
  constexpr double kLeast = 1e-6;
  if (forward <= 0 || backward <= 0) return;
  p.forward_efficiency = p.recover_efficiency = std::clamp(ideal / forward, kLeast, 1.0);
  p.backward_efficiency = std::clamp(2 * ideal / backward, kLeast, 1.0);
}

}  // namespace trainer
