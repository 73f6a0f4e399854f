#include "runtime/training_binder.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "comm/collectives.h"
#include "schedule/one_f_one_b.h"

namespace trainer {
namespace {

constexpr int kForwardTag = 1, kBackwardTag = 2;

}  // namespace

RankCommunicators RankCommunicators::make(Communicator& world, const Problem& problem,
                                          const DeviceTransport& transport, Device& device) {
  const int rank = world.rank(), stage = problem.stage_of(rank), replica = problem.replica_of(rank);
  const bool end = stage == 0 || stage == problem.stages - 1;
  RankCommunicators c;
  c.boundary = world.split(0, rank);
  const int tensor = problem.tensor_of(rank), tensor_ranks = problem.tensor_ranks;
  c.data_parallel = world.split(stage * tensor_ranks + tensor, rank);
  c.tied = world.split(end ? replica * tensor_ranks + tensor : problem.replicas * tensor_ranks + rank, rank);
  c.world = world.split(0, rank);
  if (tensor_ranks > 1) c.tensor = world.split(rank / tensor_ranks, rank);
  if (!transport) return c;
  for (auto* group : {&c.boundary, &c.data_parallel, &c.tied})
    *group = transport(std::move(*group), device.transfers());
  if (c.tensor) c.tensor = transport(std::move(c.tensor), device.compute());
  return c;
}

TrainingBinder::TrainingBinder(Parts parts) : parts_(std::move(parts)) {
  static_assert(KernelSet::kNormBlock == kNormBlock);
  if (!parts_.device->host_reaches()) {
    require(parts_.transfer_kernels != nullptr, "a device without kernels for its transfers");
    adder_.emplace(*parts_.transfer_kernels, parts_.device->transfers());
  }
  const Problem& p = parts_.problem;
  for (const LayerCatalogue& layer : p.layers) ranges_.push_back(shard_ranges(layer, p.replicas));
  for (int r = 0; r < p.world_size(); ++r) {
    const auto stage = static_cast<size_t>(p.stage_of(r)), replica = static_cast<size_t>(p.replica_of(r));
    size_t blocks = 0;
    for (int l = p.first_layer[stage]; l < p.first_layer[stage + 1]; ++l)
      blocks += norm_blocks(p.layers[static_cast<size_t>(l)], ranges(l)[replica]).size();
    norms_.emplace_back(blocks);
    ends_.emplace_back(1);
    losses_.emplace_back(p.stage_of(r) == p.stages - 1 ? 2 * static_cast<size_t>(p.virtual_ranks) : 0);
  }
}

TrainingBinder::~TrainingBinder() = default;

// The thread of every other lane of a training step drives transfers.
DeviceQueue& TrainingBinder::queue_of(const StepGraph& graph, const Task& task) const {
  const bool computes = graph.lanes[static_cast<size_t>(task.lane)].kind == LaneKind::kCompute;
  return computes ? parts_.device->compute() : parts_.device->transfers();
}

std::byte* TrainingBinder::at(const StepGraph& graph, const Use& use, int64_t step) const {
  return parts_.memory.address(graph, use.buffer, step, use.distance);
}

ShardRange TrainingBinder::own(int layer) const {
  return ranges(layer)[static_cast<size_t>(parts_.problem.replica_of(parts_.rank))];
}

ShardRange TrainingBinder::updated(int layer) const {
  if (parts_.problem.sharding() > 0) return own(layer);
  return {0, parts_.problem.layers[static_cast<size_t>(layer)].parameters};
}

std::vector<Segment> TrainingBinder::segments(int layer) const {
  std::vector<Segment> list;
  for (const ShardRange& r : ranges(layer))
    list.push_back({static_cast<size_t>(r.begin), static_cast<size_t>(r.count)});
  return list;
}

std::byte* TrainingBinder::part(const StepGraph& graph, const Use& use, int layer, ShardRange range,
                                DType dtype, int64_t step) const {
  const auto element = static_cast<int64_t>(size_of(dtype));
  const bool whole = graph.buffers[static_cast<size_t>(use.buffer)].bytes ==
                     parts_.problem.layers[static_cast<size_t>(layer)].parameters * element;
  return at(graph, use, step) + (whole ? range.begin * element : 0);
}

Ref TrainingBinder::activation(const StepGraph& graph, const Task& task, Role role, int index,
                               int64_t step) const {
  const Use* use = graph.find(task, role, index);
  return use ? Ref{at(graph, *use, step), parts_.dtype} : Ref{nullptr, parts_.dtype};
}

TrainingBinder::Gradient TrainingBinder::gradient(const StepGraph& graph, const Task& task, Role role,
                                                  int64_t step) const {
  for (const Use& use : task.uses) {
    if (use.role != role || use.access == Access::kRead) continue;
    // The first contribution of a step (or virtual rank) finds whatever lay there before.
    return {reinterpret_cast<float*>(at(graph, use, step)), use.access == Access::kWrite};
  }
  return {};
}

LayerCall TrainingBinder::call(const StepGraph& graph, const Task& task, int64_t step,
                               std::vector<Ref>& saved) const {
  // Those that forward does not keep are null.
  saved.clear();
  uint64_t kept = 0;
  for (const Use& use : task.uses)
    if (use.role == Role::kSaved) {
      saved.resize(parts_.problem.layers[static_cast<size_t>(task.at.layer_begin)].saved.size(),
                   Ref{nullptr, parts_.dtype});
      saved[static_cast<size_t>(use.index)] = {at(graph, use, step), parts_.dtype};
      if (use.access == Access::kRead) kept |= uint64_t{1} << use.index;
    }
  const Use* temporary = graph.find(task, Role::kTemporary);
  const auto weights = [&](const Use* use) {
    return Ref{use ? at(graph, *use, step) : nullptr, parts_.dtype};
  };
  LayerCall call{.kernels = parts_.kernels,
                 .batch = parts_.inputs.micro_batch(step, task.at.micro_batch),
                 .weights = weights(graph.find(task, Role::kWeights)),
                 .shared_weights = weights(graph.find(task, Role::kSharedWeights)),
                 .saved = {},
                 .temporary = {},
                 .tensor = parts_.tensor,
                 .queue = parts_.device->compute(),
                 .rope = parts_.rope};
  call.saved = saved;
  call.kept = kept;
  call.temporary = {at(graph, *temporary, step),
                    static_cast<size_t>(graph.buffers[static_cast<size_t>(temporary->buffer)].bytes)};
  return call;
}

RequestPtr TrainingBinder::start(const StepGraph& graph, Instance instance) {
  const Task& task = graph.tasks[static_cast<size_t>(instance.task)];
  const int64_t step = first_step_ + instance.step;
  const LaneKind lane = graph.lanes[static_cast<size_t>(task.lane)].kind;
  parts_.device->select();
  switch (task.kind) {
    case TaskKind::kForward:
      forward(graph, task, step);
      return nullptr;
    case TaskKind::kRecover: {
      std::vector<Ref> saved;
      const LayerCall c = call(graph, task, step, saved);
      parts_.model.layer(task.at.layer_begin).recover(c, activation(graph, task, Role::kInput, 0, step));
      return nullptr;
    }
    case TaskKind::kBackward:
      backward(graph, task, step);
      return nullptr;
    case TaskKind::kSend: {
      std::byte* data = at(graph, task.uses.front(), step);
      const BoundaryTrailer trailer =
          parts_.ledger ? parts_.ledger->outgoing(parts_.clock->now()) : BoundaryTrailer{};
      static_assert(sizeof trailer <= kBoundaryTrailerBytes);
      gate_.started();
      write_on_host(queue_of(graph, task), data + task.bytes - kBoundaryTrailerBytes, sizeof trailer,
                    [&](std::span<std::byte> bytes) { std::memcpy(bytes.data(), &trailer, bytes.size()); });
      return parts_.communicators.boundary->send(data, static_cast<size_t>(task.bytes), task.communicator,
                                                 lane == LaneKind::kSendForward ? kForwardTag : kBackwardTag);
    }
    case TaskKind::kReceive:
      return parts_.communicators.boundary->receive(
          at(graph, task.uses.front(), step), static_cast<size_t>(task.bytes), task.communicator,
          lane == LaneKind::kReceiveForward ? kForwardTag : kBackwardTag);
    case TaskKind::kGradFold:
      fold(graph, task, step);
      return nullptr;
    case TaskKind::kGradSync:
      return synchronise(graph, task, step);
    case TaskKind::kGradNorm:
      square(graph, task, step);
      return nullptr;
    case TaskKind::kNormSync:
      return exchange_norms(graph, task, step);
    case TaskKind::kUpdateShard:
      update(graph, task, step);
      return nullptr;
    case TaskKind::kPrefetchWeights:
      return refresh(graph, task, step);
    case TaskKind::kOffload:
    case TaskKind::kReload:
      break;
  }
  require(false, "{} is not a training task", graph.describe(instance.task));
  return nullptr;
}

void TrainingBinder::finish(const StepGraph& graph, Instance instance) {
  const Task& task = graph.tasks[static_cast<size_t>(instance.task)];
  const int64_t step = first_step_ + instance.step;
  if (graph.lanes[static_cast<size_t>(task.lane)].kind == LaneKind::kCompute) {
    if (const DeviceEventPtr end = std::exchange(end_under_way_, nullptr))
      end->wait();
    else
      parts_.device->compute().synchronise();
  }
  if (task.kind == TaskKind::kBackward && parts_.clock) last_backward_end_ = parts_.clock->now();
  if (task.kind == TaskKind::kSend) gate_.ended();
  if (task.kind == TaskKind::kNormSync) conclude(graph, task, step);
  if (task.kind == TaskKind::kReceive && parts_.ledger) {
    BoundaryTrailer trailer;
    read_on_host(
        queue_of(graph, task), at(graph, task.uses.front(), step) + task.bytes - kBoundaryTrailerBytes,
        sizeof trailer,
        [&](std::span<const std::byte> bytes) { std::memcpy(&trailer, bytes.data(), bytes.size()); });
    parts_.ledger->arrived(graph.lanes[static_cast<size_t>(task.lane)].kind == LaneKind::kReceiveForward,
                           task.at.micro_batch, trailer);
  }
}

bool TrainingBinder::only_queues(const StepGraph& graph, const Task& task) const {
  if (parts_.device->host_reaches() || graph.lanes[static_cast<size_t>(task.lane)].kind != LaneKind::kCompute)
    return false;
  // Ranks of a tensor-parallel group meet inside layers, and the head's forward has a result for the host.
  if (parts_.tensor || task.at.layer_begin == parts_.problem.layer_count() - 1) return false;
  return task.kind == TaskKind::kForward || task.kind == TaskKind::kRecover ||
         task.kind == TaskKind::kBackward;
}

bool TrainingBinder::start_behind(const StepGraph& graph, Instance next) {
  if (!only_queues(graph, graph.tasks[static_cast<size_t>(next.task)])) return false;
  end_under_way_ = parts_.device->compute().record();
  start(graph, next);
  return true;
}

void TrainingBinder::forward(const StepGraph& graph, const Task& task, int64_t step) {
  std::vector<Ref> saved;
  LayerCall c = call(graph, task, step, saved);
  const Gradient to = gradient(graph, task, Role::kGradient, step),
                 shared = gradient(graph, task, Role::kSharedGradient, step);
  c.gradients = to.data;
  c.first_gradients = to.first;
  c.shared_gradients = shared.data;
  c.first_shared_gradients = shared.first;
  const ClassifierResult result = parts_.model.layer(task.at.layer_begin)
                                      .forward(c, activation(graph, task, Role::kInput, 0, step),
                                               activation(graph, task, Role::kOutput, 0, step));
  if (task.at.layer_begin != parts_.problem.layer_count() - 1) return;
  if (parts_.problem.forward_only) {
    evaluation_.loss_sum += result.loss_sum;
    evaluation_.valid_tokens += result.valid_tokens;
    return;
  }
  for (const Use& use : task.uses)
    if (use.role == Role::kLoss) {
      const int64_t bytes = graph.buffers[static_cast<size_t>(use.buffer)].bytes;
      change_on_host(parts_.device->compute(), reinterpret_cast<LossCell*>(at(graph, use, step)),
                     static_cast<size_t>(bytes) / sizeof(LossCell), [&](std::span<LossCell> cells) {
                       if (use.access == Access::kWrite) std::fill(cells.begin(), cells.end(), LossCell{});
                       LossCell& cell = cells[static_cast<size_t>(use.index)];
                       cell.sum += result.loss_sum;
                       cell.valid += result.valid_tokens;
                     });
    }
}

void TrainingBinder::backward(const StepGraph& graph, const Task& task, int64_t step) {
  std::vector<Ref> saved;
  LayerCall c = call(graph, task, step, saved);
  const Gradient to = gradient(graph, task, Role::kGradient, step);
  c.gradients = to.data;
  c.first_gradients = to.first;
  parts_.model.layer(task.at.layer_begin)
      .backward(c, activation(graph, task, Role::kInput, 0, step),
                activation(graph, task, Role::kInput, 1, step),
                activation(graph, task, Role::kOutput, 0, step));
}

StepResult TrainingBinder::take_result(int64_t step) {
  const std::lock_guard lock(results_mutex_);
  const auto it = results_.find(step);
  require(it != results_.end(), "step {} has no result", step);
  const StepResult result = it->second;
  results_.erase(it);
  return result;
}

ClassifierResult TrainingBinder::take_evaluation() { return std::exchange(evaluation_, {}); }

}  // namespace trainer
