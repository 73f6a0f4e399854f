#include "plan/plan_estimate.h"

#include <algorithm>
#include <numeric>

#include "schedule/passes.h"

namespace trainer {
namespace {

double sum(const std::vector<double>& values, int begin, int end) {
  return std::accumulate(values.begin() + begin, values.begin() + end, 0.0);
}

// A rank's share in a data-parallel collective, alone on its link.
double collective(const Platform& platform, const PlanChoice& choice, CollectiveKind kind, double bytes) {
  const int beside =
      std::clamp(platform.devices_per_node / choice.tensor_ranks, 1, std::max(choice.replicas, 1));
  const CollectiveCost cost = collective_cost(platform, kind, bytes, choice.replicas, beside);
  return cost.seconds + (cost.bytes > 0 ? cost.bytes / cost.rate : 0);
}

// The last of several stages keeps what fits, as a rule everything.
bool recovers(const PlanChoice& choice, int stage) { return choice.stages == 1 || stage + 1 < choice.stages; }

// How often ZeRO-3 gathers a layer's weights for one micro-batch. Neighbouring uses share a copy: a recovery
// and its backward unless it runs ahead, and the head's passes. An embedding's backward reads no weights.
int gathers_of(const PlanChoice& choice, const LayerSeconds& seconds, int stage, int layer) {
  const auto l = static_cast<size_t>(layer);
  if (layer == 0 || l + 1 == seconds.forward.size()) return 1;
  return choice.has("forward_side_recovery") && recovers(choice, stage) && seconds.recover[l] > 0 ? 3 : 2;
}

// Seconds of one stage.
struct StageSeconds {
  double forward = 0, backward = 0, recover = 0;
};

}  // namespace

LayerSeconds layer_seconds(const PlanRequest& request, const PlanModel& model, int tensor_ranks,
                           ActivationPolicy activation, const Platform& platform) {
  PlanChoice one;
  one.tensor_ranks = tensor_ranks;
  one.activation = activation;
  one.stage_layers = {static_cast<int64_t>(model.layers.size()) - 2};
  Problem problem = problem_of(request, model, one, false);
  problem.ranks = {0};
  const StepGraph graph = build_step_graph(problem);
  const CostTable costs = cost_model(graph, problem, platform);
  LayerSeconds seconds;
  for (auto* values :
       {&seconds.forward, &seconds.backward, &seconds.recover, &seconds.update, &seconds.refresh})
    values->assign(model.layers.size(), 0);
  for (size_t id = 0; id < graph.tasks.size(); ++id) {
    const Task& task = graph.tasks[id];
    if (task.at.layer_begin < 0) continue;
    const auto layer = static_cast<size_t>(task.at.layer_begin);
    double s = costs.seconds[id];
    if (costs.bytes[id] > 0) s += costs.bytes[id] / costs.rate[id];
    if (task.kind == TaskKind::kForward) seconds.forward[layer] += s;
    if (task.kind == TaskKind::kBackward) seconds.backward[layer] += s;
    if (task.kind == TaskKind::kRecover) seconds.recover[layer] += s;
    if (task.kind == TaskKind::kUpdateShard || task.kind == TaskKind::kGradNorm) seconds.update[layer] += s;
    if (task.kind == TaskKind::kPrefetchWeights) seconds.refresh[layer] += s;
  }
  return seconds;
}

StepParts estimate_step(const PlanRequest& request, const PlanModel& model, const PlanChoice& choice,
                        const LayerSeconds& seconds, const Platform& platform) {
  const bool ahead = choice.has("forward_side_recovery"), pipelined = choice.has("layer_state_pipeline"),
             prefetched = choice.has("update_prefetch");
  const std::vector<int> first = first_layers(choice.stage_layers);
  const int stages = choice.stages, sharding = choice.replicas > 1 ? choice.zero_stage : 0;
  const double micro_batches = choice.micro_batches;
  std::vector<StageSeconds> by_stage;
  double fill = 0, fill_recovery = 0, slowest = 0, slowest_recovery = 0;
  for (int s = 0; s < stages; ++s) {
    const int begin = first[static_cast<size_t>(s)], end = first[static_cast<size_t>(s) + 1];
    StageSeconds t{sum(seconds.forward, begin, end), sum(seconds.backward, begin, end),
                   recovers(choice, s) ? sum(seconds.recover, begin, end) : 0};
    by_stage.push_back(t);
    const double main = t.forward + t.backward;
    fill += main;
    if (!ahead) fill_recovery += t.recover;
    slowest = std::max(slowest, main);
    const double all = platform.recovery_has_its_own_lane && ahead ? main : main + t.recover;
    slowest_recovery = std::max(slowest_recovery, all);
  }
  double hop = 0;
  if (stages > 1) {
    const int stride = choice.replicas * choice.tensor_ranks;
    const auto& pair = platform.link(LinkUse::kBoundary);
    const Link& link = stride >= platform.devices_per_node ? pair.across_nodes : pair.within_node;
    if (link.bytes_per_second > 0)
      hop = link.latency_seconds + static_cast<double>(model.layers[1].output_bytes) / link.bytes_per_second;
  }
  StepParts parts;
  parts.main_path = (micro_batches - 1) * slowest + fill + 2 * (stages - 1) * hop;
  parts.recovery = (micro_batches - 1) * slowest_recovery + fill + fill_recovery -
                   (parts.main_path - 2 * (stages - 1) * hop);

  // State tasks of the stage that has most of them.
  const double element = static_cast<double>(request.element_bytes);
  for (int s = 0; s < stages; ++s) {
    const int begin = first[static_cast<size_t>(s)], end = first[static_cast<size_t>(s) + 1];
    StepParts state;
    double sync = 0, gather = 0, gathers = 0, update = 0, refresh = 0, first_gather = 0, last_sync = 0,
           first_update = 0;
    const double share = sharding > 0 ? choice.replicas : 1;
    const auto sum_seconds = [&](double parameters) {
      return collective(platform, choice,
                        sharding > 0 ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce,
                        4 * parameters);
    };
    const auto gather_seconds = [&](double parameters) {
      return sharding > 0 ? collective(platform, choice, CollectiveKind::kAllGather, element * parameters)
                          : 0;
    };
    for (int l = begin; l < end; ++l) {
      const auto at = static_cast<size_t>(l);
      const auto parameters = static_cast<double>(model.layers[at].parameters);
      const double one = sum_seconds(parameters), copy = gather_seconds(parameters);
      sync += one;
      gather += copy;
      gathers += copy * gathers_of(choice, seconds, s, l);
      update += seconds.update[at] / share;
      refresh += seconds.refresh[at] / share;
      if (l - begin < 2) first_gather += copy;
      if (l > begin) continue;
      last_sync = one;
      first_update = (seconds.update[at] + seconds.refresh[at]) / share;
    }
    // A tied head reads the embedding's table and has a gradient of it; on a stage of its own, a copy as
    // well.
    if (s + 1 == stages && model.layers.back().shared_block == 0) {
      const auto parameters = static_cast<double>(model.layers.front().parameters);
      sync += sum_seconds(parameters);
      gathers += gather_seconds(parameters);
      if (s > 0) {
        gather += gather_seconds(parameters);
        update += seconds.update.front() / share;
        refresh += seconds.refresh.front() / share;
      }
    }
    const StageSeconds& t = by_stage[static_cast<size_t>(s)];
    // What is exchanged with every micro-batch shares the lane with nothing and hides under all of them.
    const double per_micro_batch = (choice.shard_gradients ? sync : 0) + (sharding == 3 ? gathers : 0);
    state.communication = std::max(0.0, micro_batches * per_micro_batch - parts.main_path - parts.recovery);
    if (!choice.shard_gradients)
      state.communication += pipelined ? std::max(last_sync, sync - t.backward) : sync;
    else
      state.communication += last_sync;
    state.update = pipelined && prefetched ? first_update : update + refresh;
    if (sharding == 1 || sharding == 2)
      state.prefetch = prefetched ? std::max(first_gather, gather - t.forward) : gather;
    if (state.communication + state.update + state.prefetch <=
        parts.communication + parts.update + parts.prefetch)
      continue;
    parts.communication = state.communication;
    parts.update = state.update;
    parts.prefetch = state.prefetch;
  }
  parts.step_seconds = parts.main_path + parts.communication + parts.update + parts.prefetch + parts.recovery;
  return parts;
}

}  // namespace trainer
