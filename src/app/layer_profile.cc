#include "app/layer_profile.h"

#include <algorithm>
#include <map>

#include "app/kernels.h"
#include "app/training_rank.h"
#include "base/error.h"
#include "base/statistics.h"
#include "comm/in_process.h"
#include "data/synthetic_source.h"

namespace trainer {
namespace {

constexpr int kMicroBatches = 3;  // the first, and two that add to its gradients

// Adds what one program recorded.
void record(const Config& config, const ModelConfig& model, Communicator& world, int steps,
            std::vector<TimelineEvent>& events, std::vector<LayerCatalogue>& layers) {
  const auto alone = make_in_process_group(1);
  const auto& t = config.training;
  const auto samples = std::make_shared<SyntheticSource>(config.data.sequence_length, model.vocabulary_size,
                                                         t.seed, 0, (steps + 1) * t.global_batch_size);
  TrainingRank rank(config, model, make_kernels(config.device), *alone.front(), samples, nullptr);
  rank.allocate();
  rank.initialize_random();
  world.barrier();
  rank.run(1, 1 + steps, nullptr);
  for (TimelineEvent& event : rank.take_timeline().events) events.push_back(std::move(event));
  layers = rank.problem().layers;
}

struct Samples {
  std::vector<double> forward, first_forward, backward, first_backward, recover, update, refresh, norm;
};

double median_or_none(const std::vector<double>& values) { return values.empty() ? -1 : median(values); }

}  // namespace

LayerProfile summarise_layers(const std::vector<LayerCatalogue>& layers, int64_t element_bytes,
                              std::vector<TimelineEvent> events) {
  std::map<LayerShape, Samples> samples;
  std::vector<double> gaps;
  std::erase_if(events, [](const TimelineEvent& e) { return e.lane != "compute"; });
  std::sort(events.begin(), events.end(), [](const auto& a, const auto& b) {
    return std::tie(a.step, a.begin) < std::tie(b.step, b.begin);
  });
  for (size_t i = 0; i < events.size(); ++i) {
    const TimelineEvent& e = events[i];
    if (i > 0 && events[i - 1].step == e.step) gaps.push_back(e.begin - events[i - 1].end);
    if (e.layer < 0) continue;
    Samples& s = samples[shape_of(layers[static_cast<size_t>(e.layer)], element_bytes)];
    const bool first = e.micro_batch == 0;
    auto* list = e.kind == "Forward"       ? first ? &s.first_forward : &s.forward
                 : e.kind == "Backward"    ? first ? &s.first_backward : &s.backward
                 : e.kind == "Recover"     ? &s.recover
                 : e.kind == "UpdateShard" ? &s.update
                 : e.kind == "PrefetchW"   ? &s.refresh
                 : e.kind == "GradNorm"    ? &s.norm
                                           : nullptr;
    if (list) list->push_back(e.end - e.begin);
  }
  LayerProfile profile;
  if (!gaps.empty()) profile.task_overhead_seconds = std::max(0.0, median(gaps));
  for (const auto& [shape, s] : samples) {
    MeasuredLayer m;
    m.shape = shape;
    m.forward_seconds = median_or_none(s.forward);
    m.first_forward_seconds = median_or_none(s.first_forward);
    m.backward_seconds = median_or_none(s.backward);
    m.first_backward_seconds = median_or_none(s.first_backward);
    m.recover_seconds = median_or_none(s.recover);
    m.update_seconds = median_or_none(s.update);
    m.refresh_seconds = median_or_none(s.refresh);
    m.norm_seconds = median_or_none(s.norm);
    profile.layers.push_back(m);
  }
  return profile;
}

int64_t profiled_blocks(const Config& config, const ModelConfig& model, int64_t memory_bytes) {
  const Model whole(model, config.data.sequence_length);
  // Masters, moments, gradients and working weights; what forward saves for the first backward.
  const auto bytes = [&](int layer) {
    const LayerCatalogue c = whole.layer(layer).catalogue(
        config.training.micro_batch_size, config.data.sequence_length, config.precision.compute);
    return 20 * c.parameters + c.saved_bytes() + c.output_bytes;
  };
  const int64_t left = memory_bytes - bytes(0) - bytes(whole.layer_count() - 1);
  return std::min(model.num_layers, std::clamp<int64_t>(left / bytes(1), 1, kProfiledBlocks));
}

Config profiled_program(const Config& config) {
  Config one = config;
  one.parallel = {};
  one.training.global_batch_size = kMicroBatches * one.training.micro_batch_size;
  one.device.memory_budget = {};
  one.schedule.passes.clear();
  one.schedule.last_stage_keeps = false;
  one.run.trace_steps.clear();
  return one;
}

LayerProfile measure_layers(const Config& config, const ModelConfig& model, Communicator& world, int steps,
                            int64_t memory_bytes) {
  Config one = profiled_program(config);
  ModelConfig few = model;
  few.num_layers = profiled_blocks(config, model, memory_bytes / 2);
  one.training.steps = steps + 1;
  for (int step = 2; step <= steps + 1; ++step) one.run.trace_steps.push_back(step);
  resolve_parallel(one, few, 1);

  // What a backward finds in caches differs with and without recovery; both count alike.
  std::vector<TimelineEvent> events;
  std::vector<LayerCatalogue> layers;
  for (const ActivationPolicy policy : {ActivationPolicy::kFullSave, ActivationPolicy::kCheckpoint}) {
    one.schedule.activation = policy;
    std::vector<TimelineEvent> fresh;
    record(one, few, world, steps, fresh, layers);
    const int offset = policy == ActivationPolicy::kFullSave ? 0 : steps + 1;
    for (TimelineEvent& event : fresh) {
      event.step += offset;
      events.push_back(std::move(event));
    }
  }
  LayerProfile profile =
      summarise_layers(layers, static_cast<int64_t>(size_of(one.precision.compute)), std::move(events));
  std::vector<double> numbers{profile.task_overhead_seconds};
  const auto each = [&](auto&& visit) {
    for (MeasuredLayer& m : profile.layers)
      for (double* value :
           {&m.forward_seconds, &m.first_forward_seconds, &m.backward_seconds, &m.first_backward_seconds,
            &m.recover_seconds, &m.update_seconds, &m.refresh_seconds, &m.norm_seconds})
        visit(*value);
  };
  each([&](double& value) { numbers.push_back(value); });
  sum_over_ranks(world, numbers);
  auto next = numbers.begin();
  profile.task_overhead_seconds = *next++ / world.size();
  each([&](double& value) { value = *next++ / world.size(); });
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
