#include "sim/cost_model.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "base/error.h"

namespace trainer {
namespace {

int log2_up(int n) {
  int result = 0;
  while ((1 << result) < n) ++result;
  return result;
}

const Link& need(const Platform& platform, LinkUse use, bool across_nodes) {
  const auto& pair = platform.link(use);
  const Link& link = across_nodes ? pair.across_nodes : pair.within_node;
  if (link.bytes_per_second > 0) return link;
  input_error("platform '{}' has no link 'links.{}.{}', which this plan needs", platform.name, name_of(use),
              across_nodes ? "across_nodes" : "within_node");
}

// A rank of each: of its stage and part of a layer, of its replica and part, or all.
int group_of(const Task& task, const Problem& problem) {
  if (task.communicator == kWorld) return 0;
  const int rows = task.communicator == kDataParallel ? task.at.stage : problem.replica_of(task.at.rank);
  return rows * problem.tensor_ranks + problem.tensor_of(task.at.rank);
}

constexpr double kLeastCore = 1e-3;  // of a device, to a transfer that waits for a core

class CostModel {
 public:
  CostModel(const StepGraph& graph, const Problem& problem, const Platform& platform)
      : graph_(graph), problem_(problem), platform_(platform) {
    const size_t tasks = graph.tasks.size();
    costs_.seconds.assign(tasks, 0);
    costs_.bytes.assign(tasks, 0);
    costs_.rate.assign(tasks, 0);
    costs_.meeting = collective_meetings(graph, problem);
    costs_.link_group.assign(graph.lanes.size(), kNone);
    if (!platform.measured.empty())
      for (const Task& task : graph.tasks)
        if (task.kind == TaskKind::kRecover) recovered_.insert(pass_of(task));
    for (const Lane& lane : graph.lanes) built_.insert(lane.rank);
    for (const LayerCatalogue& layer : problem.layers) {
      LayerCosts& costs = layers_.emplace_back();
      costs.measured = platform.measurement(shape_of(layer, problem.element_bytes, problem.stages > 1));
      for (const SavedTensor& saved : layer.saved) costs.recompute_flops += saved.recompute_flops;
    }
  }

  CostTable make() {
    for (size_t lane = 0; lane < graph_.lanes.size(); ++lane) {
      lane_ = static_cast<LaneId>(lane);
      for (TaskId id : graph_.lanes[lane].program) cost(id);
    }
    return std::move(costs_);
  }

 private:
  // Looked up once for all of a layer's tasks.
  struct LayerCosts {
    const MeasuredLayer* measured = nullptr;
    double recompute_flops = 0;  // of everything that its backward needs
  };

  void cost(TaskId id) {
    const Task& task = graph_.tasks[static_cast<size_t>(id)];
    const LaneKind lane = graph_.lanes[static_cast<size_t>(lane_)].kind;
    switch (lane) {
      case LaneKind::kCompute:
      case LaneKind::kHostCompute:
        return compute(id, task, lane == LaneKind::kCompute);
      case LaneKind::kCollective:
        return collective(id, task);
      case LaneKind::kHostToDevice:
        return move(id, need(platform_, LinkUse::kHostToDevice, false), static_cast<double>(task.bytes),
                    task.at.rank);
      case LaneKind::kDeviceToHost:
        return move(id, need(platform_, LinkUse::kDeviceToHost, false), static_cast<double>(task.bytes),
                    task.at.rank);
      case LaneKind::kStorageRead:
        return move(id, need(platform_, LinkUse::kStorageRead, false), static_cast<double>(task.bytes),
                    task.at.rank);
      case LaneKind::kStorageWrite:
        return move(id, need(platform_, LinkUse::kStorageWrite, false), static_cast<double>(task.bytes),
                    task.at.rank);
      default:
        if (task.kind == TaskKind::kSend)
          move(id, need(platform_, LinkUse::kBoundary, node_of(task.at.rank) != node_of(task.communicator)),
               static_cast<double>(task.bytes), task.at.rank);
    }
  }

  // Ranks of this rank's node, which share its host memory.
  int ranks_beside(int rank) const {
    const int first = node_of(rank) * platform_.devices_per_node;
    return std::min(platform_.devices_per_node, problem_.world_size() - first);
  }

  int node_of(int rank) const { return rank / platform_.devices_per_node; }

  // How much of a buffer that all replicas have whole a state task touches: its replica's shard.
  double share_of(const Task& task, const Use& use) const {
    const bool squares = task.kind == TaskKind::kGradNorm,
               updates = task.kind == TaskKind::kUpdateShard || task.kind == TaskKind::kPrefetchWeights;
    if (task.communicator != kNone || !(squares || (updates && problem_.sharding() > 0))) return 1;
    if (use.role != Role::kGradient && use.role != Role::kWeights) return 1;
    const int64_t elements = layer_of(task).parameters;
    const int64_t bytes = graph_.buffers[static_cast<size_t>(use.buffer)].bytes;
    const int64_t whole =
        use.role == Role::kGradient ? elements * problem_.gradient_bytes : elements * problem_.element_bytes;
    return bytes == whole ? 1.0 / problem_.replicas : 1;
  }

  // Bytes read and written on behalf of a task.
  double traffic(const Task& task) const {
    double bytes = 0;
    for (const Use& use : task.uses) {
      if (use.role == Role::kTemporary) continue;
      const double size =
          static_cast<double>(graph_.buffers[static_cast<size_t>(use.buffer)].bytes) * share_of(task, use);
      bytes += use.access == Access::kAccumulate ? 2 * size : size;
    }
    return bytes;
  }

  const LayerCatalogue& layer_of(const Task& task) const {
    return problem_.layers[static_cast<size_t>(task.at.layer_begin)];
  }

  double recompute_flops(const Task& task) const {
    double flops = 0;
    for (const Use& use : task.uses)
      if (use.role == Role::kSaved && use.access == Access::kWrite)
        flops += layer_of(task).saved[static_cast<size_t>(use.index)].recompute_flops;
    return flops;
  }

  double product_seconds(double flops, double efficiency) {
    if (flops == 0) return 0;
    if (matmul_rate_ == 0) matmul_rate_ = platform_.flops_per_second(precision_of(problem_.element_bytes));
    return flops / (efficiency * matmul_rate_);
  }

  // What a layer cut over a tensor-parallel group waits for its peers, which are neighbours.
  double exchange_seconds(const Task& task) const {
    TensorExchange exchange;
    for (int l = task.at.layer_begin; l >= 0 && l < task.at.layer_end; ++l) {
      const LayerCatalogue& layer = problem_.layers[static_cast<size_t>(l)];
      if (task.kind == TaskKind::kForward) exchange += layer.forward_exchange;
      if (task.kind == TaskKind::kBackward) exchange += layer.backward_exchange;
      if (task.kind == TaskKind::kRecover) exchange += layer.recover_exchange;
    }
    if (exchange.count == 0) return 0;
    const int first = task.at.rank - problem_.tensor_of(task.at.rank);
    // A problem that leaves its groups out (tensor_ranks 1, layers cut all the same) has one device for each.
    const bool across_nodes =
        platform_.devices_per_node == 1 || node_of(first) != node_of(first + problem_.tensor_ranks - 1);
    const auto& own = platform_.link(LinkUse::kExchange);
    const bool has_own = (across_nodes ? own.across_nodes : own.within_node).bytes_per_second > 0;
    const Link& link = need(platform_, has_own ? LinkUse::kExchange : LinkUse::kCollective, across_nodes);
    return exchange.count * link.latency_seconds +
           static_cast<double>(exchange.bytes) / link.bytes_per_second;
  }

  // A layer's Forward and Backward of one micro-batch.
  static std::tuple<int, int, int, int> pass_of(const Task& task) {
    return {task.at.rank, task.at.layer_begin, task.at.micro_batch, task.at.segment};
  }

  // Of a measured Forward or Backward: that of its case, else, where none was measured, of the plainer one.
  double pass_seconds(const Task& task, double added, double first, double recovered,
                      double first_recovered) const {
    const bool writes = std::any_of(task.uses.begin(), task.uses.end(), [](const Use& use) {
      return (use.role == Role::kGradient || use.role == Role::kSharedGradient) &&
             use.access == Access::kWrite;
    });
    if (recovered >= 0 && recovered_.count(pass_of(task)) > 0) {
      added = recovered;
      if (first_recovered >= 0) first = first_recovered;
    }
    return writes && first >= 0 ? first : added;
  }

  // Of seconds measured for all of a layer's parameters; below 0: not measured.
  double share_of_master(const Task& task, double seconds) const {
    const Use* master = graph_.find(task, Role::kMaster);
    const auto parameters = static_cast<double>(layer_of(task).parameters);
    if (seconds < 0 || !master || parameters == 0) return -1;
    const auto bytes = static_cast<double>(graph_.buffers[static_cast<size_t>(master->buffer)].bytes);
    return seconds * bytes / (4 * parameters);
  }

  // The longer of products and memory, or as measured, and the exchanges of cut layers.
  double kernel_seconds(const Task& task, double memory_seconds) {
    const bool one_layer = task.at.layer_begin >= 0 && task.at.layer_end == task.at.layer_begin + 1;
    const LayerCosts costs = one_layer ? layers_[static_cast<size_t>(task.at.layer_begin)] : LayerCosts{};
    const MeasuredLayer* measured = costs.measured;
    double flops = 0, efficiency = platform_.forward_efficiency, measured_seconds = -1;
    switch (task.kind) {
      case TaskKind::kForward:
        for (int l = task.at.layer_begin; l < task.at.layer_end; ++l)
          flops += problem_.layers[static_cast<size_t>(l)].forward_flops;
        if (measured)
          measured_seconds =
              pass_seconds(task, measured->forward_seconds, measured->first_forward_seconds,
                           measured->recovered_forward_seconds, measured->first_recovered_forward_seconds);
        break;
      case TaskKind::kBackward:
        for (int l = task.at.layer_begin; l < task.at.layer_end; ++l)
          flops += problem_.layers[static_cast<size_t>(l)].backward_flops;
        efficiency = platform_.backward_efficiency;
        if (measured)
          measured_seconds =
              pass_seconds(task, measured->backward_seconds, measured->first_backward_seconds,
                           measured->recovered_backward_seconds, measured->first_recovered_backward_seconds);
        break;
      case TaskKind::kRecover: {
        flops = recompute_flops(task);
        efficiency = platform_.recover_efficiency;
        if (measured && measured->recover_seconds >= 0)
          measured_seconds =
              measured->recover_seconds * (costs.recompute_flops > 0 ? flops / costs.recompute_flops : 1);
        break;
      }
      case TaskKind::kUpdateShard:
        if (measured) measured_seconds = share_of_master(task, measured->update_seconds);
        break;
      case TaskKind::kPrefetchWeights:
        if (measured) measured_seconds = share_of_master(task, measured->refresh_seconds);
        break;
      case TaskKind::kGradNorm:
        // A replica squares its own shard.
        if (measured && measured->norm_seconds >= 0)
          measured_seconds = measured->norm_seconds / problem_.replicas;
        break;
      default:
        break;
    }
    if (measured_seconds >= 0) return measured_seconds + exchange_seconds(task);
    const double products = product_seconds(flops, efficiency);
    return (platform_.memory_overlaps_products ? std::max(products, memory_seconds)
                                               : products + memory_seconds) +
           exchange_seconds(task);
  }

  void compute(TaskId id, const Task& task, bool on_device) {
    const auto index = static_cast<size_t>(id);
    const double bytes = traffic(task);
    const bool host = !on_device && task.kind != TaskKind::kRecover;
    double bandwidth = platform_.memory_bytes_per_second * platform_.memory_efficiency;
    if (host) {
      bandwidth = platform_.host_memory_bytes_per_second / ranks_beside(task.at.rank);
      if (!(bandwidth > 0))
        input_error("platform '{}' has no key 'host.memory_bytes_per_second', which this plan needs",
                    platform_.name);
    }
    const double seconds = kernel_seconds(task, bytes / bandwidth);
    if (!host && platform_.shares_cores()) {
      costs_.seconds[index] = platform_.task_overhead_seconds;
      costs_.bytes[index] = seconds;
      costs_.rate[index] = 1;
      join_cores(task.at.rank);
      return;
    }
    if (host || platform_.memory_group.empty() || bytes == 0 || seconds == 0) {
      costs_.seconds[index] = seconds + platform_.task_overhead_seconds;
      return;
    }
    // Alone it needs its memory traffic at this rate; with less, it takes longer.
    costs_.seconds[index] = platform_.task_overhead_seconds;
    costs_.bytes[index] = bytes;
    costs_.rate[index] = bytes / seconds;
    join(platform_.memory_group, task.at.rank);
  }

  void move(TaskId id, const Link& link, double bytes, int rank) {
    const auto index = static_cast<size_t>(id);
    costs_.seconds[index] = link.latency_seconds;
    costs_.bytes[index] = bytes;
    costs_.rate[index] = link.bytes_per_second;
    share(index, link, rank);
  }

  // What slows a task that moves bytes over this link: others on the wire, or on its rank's cores.
  void share(size_t index, const Link& link, int rank) {
    if (!link.group.empty()) join(link.group, rank);
    if (!platform_.shares_cores()) return;
    double weight = link.core_weight;
    if (link.core_share > 0) {
      costs_.bytes[index] *= link.core_share / costs_.rate[index];
      costs_.rate[index] = link.core_share;
    } else {
      costs_.seconds[index] += costs_.bytes[index] / costs_.rate[index];
      costs_.bytes[index] = 0;
      if (link.core_wait_seconds == 0) return;
      // Wants next to nothing, and gets it that late beside other work.
      weight = kLeastCore / (1 - kLeastCore);
      costs_.bytes[index] = kLeastCore * link.core_wait_seconds;
      costs_.rate[index] = 1;
    }
    costs_.lane_weight.resize(graph_.lanes.size(), 1);
    costs_.lane_weight[static_cast<size_t>(lane_)] = weight;
    join_cores(rank);
  }

  // A rank's cores are a wire too: work on them counts in seconds at one second per second.
  void join_cores(int rank) {
    int& group = costs_.link_group[static_cast<size_t>(lane_)];
    const auto fresh = static_cast<int>(costs_.group_rate.size());
    const auto [it, added] = cores_.try_emplace(rank, fresh);
    if (added) costs_.group_rate.push_back(1);
    require(group == kNone || group == it->second, "a lane of rank {} is on two shared links", rank);
    group = it->second;
  }

  void collective(TaskId id, const Task& task) {
    const auto index = static_cast<size_t>(id);
    const auto [devices, beside] = members_of(task);
    CollectiveCost c;
    if (task.kind == TaskKind::kNormSync) {
      // Everyone hears what everyone found.
      double bytes = 0;
      for (const Use& use : task.uses)
        if (use.role == Role::kNorms || use.role == Role::kLoss)
          bytes += static_cast<double>(graph_.buffers[static_cast<size_t>(use.buffer)].bytes);
      c = collective_cost(platform_, CollectiveKind::kAllGather, bytes * devices, devices, beside);
    } else {
      const CollectiveKind kind = task.kind == TaskKind::kPrefetchWeights ? CollectiveKind::kAllGather
                                  : reduces_to_shards(task)               ? CollectiveKind::kReduceScatter
                                                                          : CollectiveKind::kAllReduce;
      c = collective_cost(platform_, kind, static_cast<double>(task.bytes), devices, beside);
    }
    costs_.seconds[index] = c.seconds;
    costs_.bytes[index] = c.bytes;
    costs_.rate[index] = c.rate;
    if (c.bytes > 0) share(index, need(platform_, LinkUse::kCollective, c.across_nodes), task.at.rank);
  }

  // How many ranks a collective has, and how many of them are on one node at most.
  std::pair<int, int> members_of(const Task& task) {
    const auto [it, fresh] = members_.try_emplace({task.communicator, group_of(task, problem_)});
    if (!fresh) return it->second;
    std::map<int, int> by_node;
    const auto add = [&](int rank) { ++by_node[node_of(rank)]; };
    if (task.communicator == kDataParallel)
      for (int replica = 0; replica < problem_.replicas; ++replica)
        add(problem_.rank_of(task.at.stage, replica));
    else if (task.communicator == kTiedEmbedding)
      for (int stage : {0, problem_.stages - 1})
        add(problem_.rank_of(stage, problem_.replica_of(task.at.rank)));
    else
      for (int rank = 0; rank < problem_.world_size(); ++rank) add(rank);
    for (const auto& [node, count] : by_node) {
      it->second.first += count;
      it->second.second = std::max(it->second.second, count);
    }
    return it->second;
  }

  // Under ZeRO no rank needs more of the sum than its shard.
  bool reduces_to_shards(const Task& task) const {
    return task.kind == TaskKind::kGradSync && task.communicator == kDataParallel && problem_.sharding() > 0;
  }

  // This lane shares the wire of this name at a rank.
  void join(const std::string& name, int rank) {
    int& group = costs_.link_group[static_cast<size_t>(lane_)];
    const SharedLink& shared = platform_.shared_links.at(name);
    const int place = shared.scope == SharedLink::Scope::kDevice ? rank
                      : shared.scope == SharedLink::Scope::kNode ? node_of(rank)
                                                                 : 0;
    const auto fresh = static_cast<int>(costs_.group_rate.size());
    const auto [it, added] = groups_.try_emplace({name, place}, fresh);
    if (added) costs_.group_rate.push_back(shared.bytes_per_second / ranks_stood_for(shared.scope, place));
    require(group == kNone || group == it->second, "a lane of rank {} is on two shared links", rank);
    group = it->second;
  }

  // How many ranks on a wire each rank of the graph stands for.
  double ranks_stood_for(SharedLink::Scope scope, int place) const {
    if (scope == SharedLink::Scope::kDevice) return 1;
    int real = 0, built = 0;
    for (int rank = 0; rank < problem_.world_size(); ++rank)
      if (scope == SharedLink::Scope::kPlatform || node_of(rank) == place) {
        ++real;
        built += static_cast<int>(built_.count(rank));
      }
    return static_cast<double>(real) / built;
  }

  const StepGraph& graph_;
  const Problem& problem_;
  const Platform& platform_;
  CostTable costs_;
  LaneId lane_ = kNone;
  std::vector<LayerCosts> layers_;
  double matmul_rate_ = 0;  // 0: not asked for yet; platforms may lack it
  std::set<int> built_;
  std::set<std::tuple<int, int, int, int>> recovered_;  // passes; of platforms with measured layers
  std::map<std::pair<std::string, int>, int> groups_;
  std::map<int, int> cores_;                                    // by rank
  std::map<std::pair<int, int>, std::pair<int, int>> members_;  // by communicator and group
};

}  // namespace

CollectiveCost collective_cost(const Platform& platform, CollectiveKind kind, double bytes, int devices,
                               int devices_per_node) {
  CollectiveCost cost;
  if (devices <= 1) return cost;
  const int k = std::min(devices, devices_per_node), nodes = (devices + k - 1) / k;
  cost.across_nodes = nodes > 1;
  const Link& link = need(platform, LinkUse::kCollective, cost.across_nodes);
  const double n = devices, slowdown = 1 + platform.collective_slowdown_per_device * (n - 1);
  cost.rate = link.bytes_per_second / slowdown;
  const std::string& algorithm = platform.collective_algorithm;
  const double messages = algorithm == "ring"           ? n - 1
                          : algorithm == "tree"         ? log2_up(devices)
                          : algorithm == "hierarchical" ? log2_up(nodes)
                                                        : 1;
  cost.seconds = messages * link.latency_seconds;
  if (!cost.across_nodes) {
    if (algorithm == "hierarchical") cost.seconds = log2_up(devices) * link.latency_seconds;
    cost.bytes = bytes * (n - 1) / n;
  } else {
    const bool has_neighbours = k > 1;
    const Link inside = has_neighbours ? need(platform, LinkUse::kCollective, false) : Link{};
    const auto within = [&](double amount) { return has_neighbours ? amount / inside.bytes_per_second : 0; };
    if (algorithm == "ring") {
      cost.bytes = bytes * (n - 1) / n / k;
      // Both kinds of links are busy at once; the slower one counts.
      cost.seconds += std::max(0.0, within(bytes * (n - 1) / n) - cost.bytes / cost.rate);
    } else if (algorithm == "hierarchical") {
      cost.bytes = bytes * (nodes - 1) / nodes / k;
      cost.seconds += log2_up(k) * inside.latency_seconds + within(bytes * (k - 1) / k);
    } else {
      cost.bytes = bytes * (n - k) / n;
      cost.seconds += within(bytes * (k - 1) / n);
    }
  }
  if (kind == CollectiveKind::kAllReduce) {
    cost.seconds *= 2;
    cost.bytes *= 2;
  }
  return cost;
}

std::vector<int> collective_meetings(const StepGraph& graph, const Problem& problem) {
  std::vector<int> meeting(graph.tasks.size(), kNone);
  std::map<std::tuple<int, int, int>, int> numbers;  // by communicator, group and ordinal
  std::map<std::pair<int, int>, int> met;            // by rank and communicator
  for (const Lane& lane : graph.lanes) {
    if (lane.kind != LaneKind::kCollective) continue;
    for (TaskId id : lane.program) {
      const Task& task = graph.tasks[static_cast<size_t>(id)];
      const int ordinal = met[{task.at.rank, task.communicator}]++;
      const auto fresh = static_cast<int>(numbers.size());
      meeting[static_cast<size_t>(id)] =
          numbers.try_emplace({task.communicator, group_of(task, problem), ordinal}, fresh).first->second;
    }
  }
  return meeting;
}

CostTable cost_model(const StepGraph& graph, const Problem& problem, const Platform& platform) {
  return CostModel(graph, problem, platform).make();
}

}  // namespace trainer
