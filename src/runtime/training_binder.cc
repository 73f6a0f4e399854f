#include "runtime/training_binder.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "comm/collectives.h"
#include "schedule/one_f_one_b.h"

namespace trainer {
namespace {

constexpr int kForwardTag = 1, kBackwardTag = 2, kCollectiveTag = 16, kExchangeTag = 32;
constexpr size_t kSyncChunk = size_t{256} << 10;  // elements

// Everyone's payload to everyone; sizes are known beforehand.
class Exchange : public Request {
 public:
  Exchange(Communicator& world, std::vector<std::vector<double>>& payloads) {
    const auto me = static_cast<size_t>(world.rank());
    for (size_t r = 0; r < payloads.size(); ++r) {
      if (r == me) continue;
      const int peer = static_cast<int>(r);
      if (!payloads[r].empty())
        requests_.push_back(world.receive(payloads[r].data(), payloads[r].size() * 8, peer, kExchangeTag));
      if (!payloads[me].empty())
        requests_.push_back(world.send(payloads[me].data(), payloads[me].size() * 8, peer, kExchangeTag));
    }
  }
  bool test() override {
    std::erase_if(requests_, [](RequestPtr& r) { return r->test(); });
    return requests_.empty();
  }

 private:
  std::vector<RequestPtr> requests_;
};

// The fixed tree of the gradient reduction, for the losses of virtual ranks.
double tree_sum_of(const std::vector<double>& terms, size_t low, size_t high) {
  if (high - low == 1) return terms[low];
  const size_t middle = low + std::bit_floor(high - low - 1);
  return tree_sum_of(terms, low, middle) + tree_sum_of(terms, middle, high);
}

}  // namespace

struct TrainingBinder::Control {
  float gradient_scale, learning_rate;
  int64_t update;  // 1 for the first of training
  int32_t skip;
};

struct TrainingBinder::LossCell {
  double sum;
  int64_t valid;
};

RankCommunicators RankCommunicators::make(Communicator& world, const Problem& problem) {
  const int rank = world.rank(), stage = problem.stage_of(rank), replica = problem.replica_of(rank);
  const bool end = stage == 0 || stage == problem.stages - 1;
  RankCommunicators c;
  c.boundary = world.split(0, rank);
  const int tensor = problem.tensor_of(rank), tensor_ranks = problem.tensor_ranks;
  c.data_parallel = world.split(stage * tensor_ranks + tensor, rank);
  c.tied = world.split(end ? replica * tensor_ranks + tensor : problem.replicas * tensor_ranks + rank, rank);
  c.world = world.split(0, rank);
  if (tensor_ranks > 1) c.tensor = world.split(rank / tensor_ranks, rank);
  return c;
}

TrainingBinder::TrainingBinder(Parts parts) : parts_(std::move(parts)) {
  for (int r = 0; r < parts_.problem.world_size(); ++r) payloads_.emplace_back(payload_count(r));
}

TrainingBinder::~TrainingBinder() = default;

std::byte* TrainingBinder::at(const StepGraph& graph, const Use& use, int64_t step) const {
  return parts_.memory.address(graph, use.buffer, step, use.distance);
}

Ref TrainingBinder::activation(const StepGraph& graph, const Task& task, Role role, int index,
                               int64_t step) const {
  const Use* use = graph.find(task, role, index);
  return use ? Ref{at(graph, *use, step), parts_.dtype} : Ref{nullptr, parts_.dtype};
}

float* TrainingBinder::gradient(const StepGraph& graph, const Task& task, Role role, int64_t step) const {
  for (const Use& use : task.uses) {
    if (use.role != role || use.access == Access::kRead) continue;
    std::byte* data = at(graph, use, step);
    // The first contribution of a step (or virtual rank) finds whatever lay there before.
    if (use.access == Access::kWrite)
      parts_.kernels.fill_zero(data,
                               static_cast<size_t>(graph.buffers[static_cast<size_t>(use.buffer)].bytes));
    return reinterpret_cast<float*>(data);
  }
  return nullptr;
}

LayerCall TrainingBinder::call(const StepGraph& graph, const Task& task, int64_t step,
                               std::vector<Ref>& saved) const {
  saved.clear();
  for (const Use& use : task.uses)
    if (use.role == Role::kSaved) {
      require(use.index == static_cast<int>(saved.size()), "saved tensors of {} out of order",
              task.at.layer_begin);
      saved.push_back({at(graph, use, step), parts_.dtype});
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
                 .tensor = parts_.tensor};
  call.saved = saved;
  call.temporary = {at(graph, *temporary, step),
                    static_cast<size_t>(graph.buffers[static_cast<size_t>(temporary->buffer)].bytes)};
  return call;
}

RequestPtr TrainingBinder::start(const StepGraph& graph, Instance instance) {
  const Task& task = graph.tasks[static_cast<size_t>(instance.task)];
  const int64_t step = first_step_ + instance.step;
  const LaneKind lane = graph.lanes[static_cast<size_t>(task.lane)].kind;
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
      std::memcpy(data + task.bytes - kBoundaryTrailerBytes, &trailer, sizeof trailer);
      return parts_.communicators.boundary->send(data, static_cast<size_t>(task.bytes), task.communicator,
                                                 lane == LaneKind::kSendForward ? kForwardTag : kBackwardTag);
    }
    case TaskKind::kReceive:
      return parts_.communicators.boundary->receive(
          at(graph, task.uses.front(), step), static_cast<size_t>(task.bytes), task.communicator,
          lane == LaneKind::kReceiveForward ? kForwardTag : kBackwardTag);
    case TaskKind::kGradFold: {
      const Use& into = task.uses[0];
      const int64_t count = graph.buffers[static_cast<size_t>(into.buffer)].bytes / 4;
      parts_.kernels.add(ref(reinterpret_cast<float*>(at(graph, into, step))),
                         ref(reinterpret_cast<const float*>(at(graph, task.uses[1], step))), count);
      return nullptr;
    }
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
    case TaskKind::kPrefetchWeights: {
      const auto* control =
          reinterpret_cast<const Control*>(at(graph, *graph.find(task, Role::kControl), step));
      if (control->skip) return nullptr;
      const Use& weights = *graph.find(task, Role::kWeights);
      parts_.kernels.convert(
          {at(graph, weights, step), parts_.dtype},
          ref(reinterpret_cast<const float*>(at(graph, *graph.find(task, Role::kMaster), step))),
          graph.buffers[static_cast<size_t>(weights.buffer)].bytes /
              static_cast<int64_t>(size_of(parts_.dtype)));
      return nullptr;
    }
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
  if (task.kind == TaskKind::kNormSync) conclude(graph, task, step);
  if (task.kind == TaskKind::kReceive && parts_.ledger) {
    BoundaryTrailer trailer;
    std::memcpy(&trailer, at(graph, task.uses.front(), step) + task.bytes - kBoundaryTrailerBytes,
                sizeof trailer);
    parts_.ledger->arrived(graph.lanes[static_cast<size_t>(task.lane)].kind == LaneKind::kReceiveForward,
                           task.at.micro_batch, trailer);
  }
}

void TrainingBinder::forward(const StepGraph& graph, const Task& task, int64_t step) {
  std::vector<Ref> saved;
  LayerCall c = call(graph, task, step, saved);
  c.gradients = gradient(graph, task, Role::kGradient, step);
  c.shared_gradients = gradient(graph, task, Role::kSharedGradient, step);
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
      auto* cells = reinterpret_cast<LossCell*>(at(graph, use, step));
      if (use.access == Access::kWrite)
        std::memset(cells, 0, static_cast<size_t>(graph.buffers[static_cast<size_t>(use.buffer)].bytes));
      cells[use.index].sum += result.loss_sum;
      cells[use.index].valid += result.valid_tokens;
    }
}

void TrainingBinder::backward(const StepGraph& graph, const Task& task, int64_t step) {
  std::vector<Ref> saved;
  LayerCall c = call(graph, task, step, saved);
  c.gradients = gradient(graph, task, Role::kGradient, step);
  parts_.model.layer(task.at.layer_begin)
      .backward(c, activation(graph, task, Role::kInput, 0, step),
                activation(graph, task, Role::kInput, 1, step),
                activation(graph, task, Role::kOutput, 0, step));
}

RequestPtr TrainingBinder::synchronise(const StepGraph& graph, const Task& task, int64_t step) {
  const Use& gradient = *graph.find(task, Role::kGradient);
  const Use& staging = *graph.find(task, Role::kTemporary);
  Communicator& group =
      task.communicator == kTiedEmbedding ? *parts_.communicators.tied : *parts_.communicators.data_parallel;
  const auto count = static_cast<size_t>(graph.buffers[static_cast<size_t>(gradient.buffer)].bytes / 4);
  const auto room = static_cast<size_t>(graph.buffers[static_cast<size_t>(staging.buffer)].bytes / 4);
  size_t chunk = kSyncChunk;
  while (chunk > 16 && staging_count(count, group.size(), chunk) > room) chunk /= 2;
  return all_reduce_sum(group, reinterpret_cast<float*>(at(graph, gradient, step)), count, chunk,
                        {reinterpret_cast<float*>(at(graph, staging, step)), room}, kCollectiveTag);
}

// Doubles that `rank` contributes to the exchange: squares by parameter, then sum and count of each virtual
// rank's loss.
size_t TrainingBinder::payload_count(int rank) const {
  const Problem& p = parts_.problem;
  const auto stage = static_cast<size_t>(p.stage_of(rank));
  size_t count = 0;
  for (int l = p.first_layer[stage]; l < p.first_layer[stage + 1]; ++l)
    count += parts_.model.layer(l).parameters().size();
  if (p.stage_of(rank) == p.stages - 1) count += 2 * static_cast<size_t>(p.virtual_ranks);
  return count;
}

void TrainingBinder::square(const StepGraph& graph, const Task& task, int64_t step) {
  auto* blocks = reinterpret_cast<double*>(at(graph, *graph.find(task, Role::kNorms), step));
  std::vector<double>& mine = payloads_[static_cast<size_t>(parts_.rank)];
  size_t next = 0;
  for (const Use& use : task.uses) {
    if (use.role != Role::kGradient) continue;
    const auto* values = reinterpret_cast<const float*>(at(graph, use, step));
    for (const ParameterSpec& parameter : parts_.model.layer(use.index).parameters()) {
      parts_.kernels.block_squares(blocks, values + parameter.offset, parameter.count());
      const int64_t count = (parameter.count() + KernelSet::kNormBlock - 1) / KernelSet::kNormBlock;
      double sum = 0;
      for (int64_t b = 0; b < count; ++b) sum += blocks[b];
      mine[next++] = sum;
    }
  }
}

RequestPtr TrainingBinder::exchange_norms(const StepGraph& graph, const Task& task, int64_t step) {
  if (const Use* loss = graph.find(task, Role::kLoss)) {
    const auto* cells = reinterpret_cast<const LossCell*>(at(graph, *loss, step));
    std::vector<double>& mine = payloads_[static_cast<size_t>(parts_.rank)];
    double* out = mine.data() + mine.size() - 2 * static_cast<size_t>(parts_.problem.virtual_ranks);
    for (int v = 0; v < parts_.problem.virtual_ranks; ++v) {
      *out++ = cells[v].sum;
      *out++ = static_cast<double>(cells[v].valid);
    }
  }
  if (parts_.problem.world_size() == 1) return nullptr;
  return std::make_unique<Exchange>(*parts_.communicators.world, payloads_);
}

void TrainingBinder::conclude(const StepGraph& graph, const Task& task, int64_t step) {
  const Problem& p = parts_.problem;
  double squares = 0;
  for (int stage = 0; stage < p.stages; ++stage) {
    size_t next = 0;
    for (int l = p.first_layer[static_cast<size_t>(stage)]; l < p.first_layer[static_cast<size_t>(stage) + 1];
         ++l)
      for (const ParameterSpec& parameter : parts_.model.layer(l).parameters()) {
        double sum = 0;
        for (int t = 0; t < (parameter.replicated() ? 1 : p.tensor_ranks); ++t)
          sum += payloads_[static_cast<size_t>(p.rank_of(stage, 0, t))][next];
        squares += sum;
        ++next;
      }
  }
  std::vector<double> sums;
  StepResult result;
  for (int replica = 0; replica < p.replicas; ++replica) {
    const std::vector<double>& payload = payloads_[static_cast<size_t>(p.rank_of(p.stages - 1, replica))];
    const double* losses = payload.data() + payload.size() - 2 * static_cast<size_t>(p.virtual_ranks);
    for (int v = 0; v < p.virtual_ranks; ++v) {
      sums.push_back(losses[2 * v]);
      result.valid_tokens += static_cast<int64_t>(losses[2 * v + 1]);
    }
  }
  const double valid = static_cast<double>(result.valid_tokens);
  const OptimizerSettings& o = parts_.optimizer;
  if (result.valid_tokens > 0) {
    result.loss = tree_sum_of(sums, 0, sums.size()) / valid;
    result.gradient_norm = std::sqrt(squares) / valid;
  }
  const bool finite = std::isfinite(result.gradient_norm) && std::isfinite(result.loss);
  result.skipped = result.valid_tokens == 0 || (o.skip_non_finite && !finite);
  result.learning_rate = learning_rate(o.schedule, updates_done_);
  const double clip = o.clip_norm > 0 ? std::min(1.0, o.clip_norm / (result.gradient_norm + 1e-6)) : 1.0;
  Control control{};
  control.skip = result.skipped;
  control.gradient_scale = result.valid_tokens > 0 ? static_cast<float>(clip / valid) : 0;
  control.learning_rate = static_cast<float>(result.learning_rate);
  control.update = result.skipped ? updates_done_ : ++updates_done_;
  static_assert(sizeof control <= 64);
  std::memcpy(at(graph, *graph.find(task, Role::kControl), step), &control, sizeof control);
  const std::lock_guard lock(results_mutex_);
  results_[step] = result;
}

void TrainingBinder::update(const StepGraph& graph, const Task& task, int64_t step) {
  const auto* control = reinterpret_cast<const Control*>(at(graph, *graph.find(task, Role::kControl), step));
  if (control->skip) return;
  const auto block = [&](Role role) {
    return reinterpret_cast<float*>(at(graph, *graph.find(task, role), step));
  };
  const OptimizerSettings& o = parts_.optimizer;
  for (const ParameterSpec& parameter : parts_.model.layer(task.at.layer_begin).parameters()) {
    AdamW a{};
    a.count = parameter.count();
    a.master = block(Role::kMaster) + parameter.offset;
    a.moment1 = block(Role::kMoment1) + parameter.offset;
    a.moment2 = block(Role::kMoment2) + parameter.offset;
    a.gradient = block(Role::kGradient) + parameter.offset;
    a.gradient_scale = control->gradient_scale;
    a.learning_rate = control->learning_rate;
    a.beta1 = static_cast<float>(o.beta1);
    a.beta2 = static_cast<float>(o.beta2);
    a.epsilon = static_cast<float>(o.epsilon);
    a.weight_decay = parameter.decays() ? static_cast<float>(o.weight_decay) : 0;
    a.step = control->update;
    parts_.kernels.adamw(a);
  }
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

std::vector<OwnedBlock> TrainingBinder::blocks(const StepGraph& training) const {
  std::vector<OwnedBlock> blocks, copies;
  const int first = parts_.problem.first_layer[static_cast<size_t>(parts_.problem.stage_of(parts_.rank))];
  for (const Task& task : training.tasks) {
    if (task.kind != TaskKind::kUpdateShard || task.at.rank != parts_.rank) continue;
    const auto block = [&](Role role) {
      return reinterpret_cast<float*>(at(training, *training.find(task, role), 0));
    };
    OwnedBlock b;
    b.layer = task.at.layer_begin;
    b.copy = b.layer < first;
    b.master = block(Role::kMaster);
    b.moment1 = block(Role::kMoment1);
    b.moment2 = block(Role::kMoment2);
    (b.copy ? copies : blocks).push_back(b);
  }
  for (const Task& task : training.tasks) {
    if (task.kind != TaskKind::kPrefetchWeights || task.at.rank != parts_.rank) continue;
    for (auto* list : {&blocks, &copies})
      for (OwnedBlock& b : *list)
        if (b.layer == task.at.layer_begin)
          b.working = {at(training, *training.find(task, Role::kWeights), 0), parts_.dtype};
  }
  blocks.insert(blocks.end(), copies.begin(), copies.end());
  return blocks;
}

void TrainingBinder::refresh_working_weights(const StepGraph& training) {
  for (const OwnedBlock& b : blocks(training))
    if (b.working) parts_.kernels.convert(b.working, ref(b.master), parts_.model.layer(b.layer).block_size());
}

}  // namespace trainer
