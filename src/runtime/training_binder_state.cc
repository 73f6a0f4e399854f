// What a rank does with gradients, optimizer state and weights; its layers are in training_binder.cc.
#include <algorithm>
#include <bit>
#include <cmath>
#include <initializer_list>

#include "comm/collectives.h"
#include "runtime/training_binder.h"

namespace trainer {
namespace {

constexpr int kCollectiveTag = 16, kExchangeTag = 32;
constexpr size_t kSyncChunk = size_t{256} << 10;  // elements

// Everyone's numbers to everyone; sizes are known beforehand.
class Exchange : public Request {
 public:
  Exchange(Communicator& world, std::initializer_list<std::vector<std::vector<double>>*> numbers) {
    const auto me = static_cast<size_t>(world.rank());
    for (auto* by_rank : numbers)
      for (size_t r = 0; r < by_rank->size(); ++r) {
        if (r == me) continue;
        const int peer = static_cast<int>(r);
        std::vector<double>&theirs = (*by_rank)[r], &mine = (*by_rank)[me];
        if (!theirs.empty())
          requests_.push_back(world.receive(theirs.data(), theirs.size() * 8, peer, kExchangeTag));
        if (!mine.empty()) requests_.push_back(world.send(mine.data(), mine.size() * 8, peer, kExchangeTag));
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

void TrainingBinder::fold(const StepGraph& graph, const Task& task, int64_t step) {
  const Use &into = task.uses[0], &from = task.uses[1];
  const int64_t bytes = graph.buffers[static_cast<size_t>(into.buffer)].bytes;
  std::byte* const sum = at(graph, into, step);
  const std::byte* term = at(graph, from, step);
  // A whole gradient into a shard of its sums.
  if (graph.buffers[static_cast<size_t>(from.buffer)].bytes != bytes)
    term = part(graph, from, task.at.layer_begin, own(task.at.layer_begin), DType::kF32, step);
  if (into.access == Access::kWrite)
    parts_.device->compute().copy(sum, term, static_cast<size_t>(bytes));
  else
    parts_.kernels.add(ref(reinterpret_cast<float*>(sum)), ref(reinterpret_cast<const float*>(term)),
                       bytes / 4);
}

RequestPtr TrainingBinder::synchronise(const StepGraph& graph, const Task& task, int64_t step) {
  const Use& gradient = *graph.find(task, Role::kGradient);
  const Use& staging = *graph.find(task, Role::kTemporary);
  const int layer = task.at.layer_begin;
  const auto room = static_cast<size_t>(graph.buffers[static_cast<size_t>(staging.buffer)].bytes / 4);
  const std::span<float> space{reinterpret_cast<float*>(at(graph, staging, step)), room};
  Communicator& group =
      task.communicator == kTiedEmbedding ? *parts_.communicators.tied : *parts_.communicators.data_parallel;
  const CollectiveOptions options = collective_options(graph, task);
  const auto chunk_for = [&](std::span<const Segment> segments) {
    size_t chunk = kSyncChunk;
    while (chunk > 16 && staging_count(segments, chunk, options.algorithm, group.nodes()) > room) chunk /= 2;
    return chunk;
  };
  if (task.communicator == kTiedEmbedding) {
    const ShardRange range = updated(layer);
    const auto halves = owned_segments(static_cast<size_t>(range.count), group.size());
    auto* data = reinterpret_cast<float*>(part(graph, gradient, layer, range, DType::kF32, step));
    return all_reduce_sum(group, data, halves, chunk_for(halves), space, kCollectiveTag, options);
  }
  auto* data = reinterpret_cast<float*>(at(graph, gradient, step));
  const auto shards = segments(layer);
  return parts_.problem.sharding() > 0
             ? reduce_scatter_sum(group, data, shards, chunk_for(shards), space, kCollectiveTag, options)
             : all_reduce_sum(group, data, shards, chunk_for(shards), space, kCollectiveTag, options);
}

RequestPtr TrainingBinder::gather(int layer, std::byte* data, const CollectiveOptions& options) {
  return all_gather(*parts_.communicators.data_parallel, data, segments(layer), size_of(parts_.dtype),
                    kSyncChunk, kCollectiveTag, options);
}

// Gated where links are shared: between machines. What the main path waits for itself, as the weights of ZeRO
// stage 3, lets nothing pass.
CollectiveOptions TrainingBinder::collective_options(const StepGraph& graph, const Task& task) const {
  CollectiveOptions options{.algorithm = parts_.grad_sync, .adder = adder_ ? &*adder_ : nullptr};
  const bool waited_for = task.kind == TaskKind::kPrefetchWeights && task.at.micro_batch >= 0;
  if (!graph.lanes[static_cast<size_t>(task.lane)].yields || waited_for) return options;
  const auto nodes = parts_.communicators.world->nodes();
  const bool one_machine = std::all_of(nodes.begin(), nodes.end(), [&](int n) { return n == nodes.front(); });
  if (!one_machine) options.gate = &gate_;
  return options;
}

RequestPtr TrainingBinder::refresh(const StepGraph& graph, const Task& task, int64_t step) {
  if (const Use* use = graph.find(task, Role::kControl))
    if (control(graph, task, *use, step).skip) return nullptr;
  const int layer = task.at.layer_begin;
  const ShardRange range = updated(layer);
  const Use& weights = *graph.find(task, Role::kWeights);
  const Use* source = graph.find(task, Role::kMaster);
  std::byte* const mine = part(graph, weights, layer, range, parts_.dtype, step);
  if (graph.lanes[static_cast<size_t>(task.lane)].kind == LaneKind::kCollective) {
    if (source) {
      DeviceQueue& queue = queue_of(graph, task);
      queue.copy(mine, at(graph, *source, step), static_cast<size_t>(range.count) * size_of(parts_.dtype));
      queue.synchronise();
    }
    return gather(layer, at(graph, weights, step), collective_options(graph, task));
  }
  const std::byte* master = part(graph, *source, layer, range, DType::kF32, step);
  parts_.kernels.convert({mine, parts_.dtype}, ref(reinterpret_cast<const float*>(master)), range.count);
  return nullptr;
}

void TrainingBinder::square(const StepGraph& graph, const Task& task, int64_t step) {
  const Problem& p = parts_.problem;
  const auto stage = static_cast<size_t>(p.stage_of(parts_.rank));
  const int layer = task.at.layer_begin;
  auto* squares = reinterpret_cast<double*>(at(graph, *graph.find(task, Role::kNorms), step));
  for (int l = p.first_layer[stage]; l < layer; ++l)
    squares += norm_block_count(p.layers[static_cast<size_t>(l)], own(l));
  const ShardRange range = own(layer);
  const auto* values = reinterpret_cast<const float*>(
      part(graph, *graph.find(task, Role::kGradient), layer, range, DType::kF32, step));
  const auto blocks = norm_blocks(p.layers[static_cast<size_t>(layer)], range);
  for (size_t first = 0; first < blocks.size();) {
    // Blocks of one parameter follow each other.
    size_t last = first;
    while (last + 1 < blocks.size() && blocks[last + 1].tensor == blocks[first].tensor) ++last;
    const int64_t begin = blocks[first].part.offset;
    parts_.kernels.block_squares(squares + first, values + (begin - range.begin),
                                 blocks[last].part.offset + blocks[last].part.count - begin);
    first = last + 1;
  }
}

RequestPtr TrainingBinder::exchange_norms(const StepGraph& graph, const Task& task, int64_t step) {
  const auto me = static_cast<size_t>(parts_.rank);
  const Use* norms = graph.find(task, Role::kNorms);
  const Use* loss = graph.find(task, Role::kLoss);
  if (norms && !norms_[me].empty())
    read_on_host(queue_of(graph, task), reinterpret_cast<const double*>(at(graph, *norms, step)),
                 norms_[me].size(), [&](std::span<const double> squares) {
                   std::copy(squares.begin(), squares.end(), norms_[me].begin());
                 });
  ends_[me][0] = last_backward_end_;
  if (loss) {
    read_on_host(queue_of(graph, task), reinterpret_cast<const LossCell*>(at(graph, *loss, step)),
                 losses_[me].size() / 2, [&](std::span<const LossCell> cells) {
                   for (size_t v = 0; v < cells.size(); ++v) {
                     losses_[me][2 * v] = cells[v].sum;
                     losses_[me][2 * v + 1] = static_cast<double>(cells[v].valid);
                   }
                 });
  }
  if (parts_.problem.world_size() == 1) return nullptr;
  Communicator& world = *parts_.communicators.world;
  if (!graph.find(task, Role::kControl))
    return std::make_unique<Exchange>(world, std::initializer_list{&norms_, &ends_});
  if (!norms) return std::make_unique<Exchange>(world, std::initializer_list{&losses_});
  return std::make_unique<Exchange>(world, std::initializer_list{&norms_, &ends_, &losses_});
}

// By parameter, in the order of the model: its blocks one after the other, whichever replica held them, and
// the parts of tensor-parallel ranks in their order; of what all of those hold, the first one's.
double TrainingBinder::sum_of_squares() const {
  const Problem& p = parts_.problem;
  double squares = 0;
  for (int stage = 0; stage < p.stages; ++stage) {
    std::vector<size_t> next(static_cast<size_t>(p.replicas * p.tensor_ranks));
    for (int l = p.first_layer[static_cast<size_t>(stage)]; l < p.first_layer[static_cast<size_t>(stage) + 1];
         ++l) {
      const LayerCatalogue& layer = p.layers[static_cast<size_t>(l)];
      std::vector<double> sums(layer.tensors.size());
      const auto& parameters = parts_.model.layer(l).parameters();
      for (int tensor = 0; tensor < p.tensor_ranks; ++tensor)
        for (int replica = 0; replica < p.replicas; ++replica) {
          size_t& at = next[static_cast<size_t>(replica * p.tensor_ranks + tensor)];
          for (const NormBlock& block : norm_blocks(layer, ranges(l)[static_cast<size_t>(replica)])) {
            const double part = norms_[static_cast<size_t>(p.rank_of(stage, replica, tensor))][at++];
            if (tensor == 0 || !parameters[block.tensor].replicated()) sums[block.tensor] += part;
          }
        }
      for (double sum : sums) squares += sum;
    }
  }
  return squares;
}

void TrainingBinder::conclude(const StepGraph& graph, const Task& task, int64_t step) {
  const Problem& p = parts_.problem;
  const OptimizerSettings& o = parts_.optimizer;
  const Use* use = graph.find(task, Role::kControl);
  const bool has_norms = graph.find(task, Role::kNorms) != nullptr;
  StepResult& result = under_way_;
  if (use) {
    result = {};
    std::vector<double> sums(static_cast<size_t>(p.replicas * p.virtual_ranks));
    for (int replica = 0; replica < p.replicas; ++replica) {
      const auto& losses = losses_[static_cast<size_t>(p.rank_of(p.stages - 1, replica))];
      for (size_t v = 0; v < losses.size() / 2; ++v) {
        sums[static_cast<size_t>(p.virtual_rank_of(replica, static_cast<int>(v)))] = losses[2 * v];
        result.valid_tokens += static_cast<int64_t>(losses[2 * v + 1]);
      }
    }
    if (result.valid_tokens > 0)
      result.loss = tree_sum_of(sums, 0, sums.size()) / static_cast<double>(result.valid_tokens);
  }
  const double valid = static_cast<double>(result.valid_tokens);
  if (has_norms && result.valid_tokens > 0) result.gradient_norm = std::sqrt(sum_of_squares()) / valid;
  if (use) {
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
    write_on_host(queue_of(graph, task), reinterpret_cast<Control*>(at(graph, *use, step)), 1,
                  [&](std::span<Control> cell) { cell.front() = control; });
  }
  if (!has_norms) return;
  if (parts_.ledger) {
    double last = 0;
    for (const auto& end : ends_) last = std::max(last, end[0]);
    parts_.ledger->all_main_paths_ended(step, last);
  }
  const std::lock_guard lock(results_mutex_);
  results_[step] = result;
}

TrainingBinder::Control TrainingBinder::control(const StepGraph& graph, const Task& task, const Use& use,
                                                int64_t step) const {
  Control control;
  read_on_host(queue_of(graph, task), reinterpret_cast<const Control*>(at(graph, use, step)), 1,
               [&](std::span<const Control> cell) { control = cell.front(); });
  return control;
}

void TrainingBinder::update(const StepGraph& graph, const Task& task, int64_t step) {
  const Control control = this->control(graph, task, *graph.find(task, Role::kControl), step);
  if (control.skip) return;
  const int layer = task.at.layer_begin;
  const ShardRange range = updated(layer);
  const auto state = [&](Role role) {
    return reinterpret_cast<float*>(part(graph, *graph.find(task, role), layer, range, DType::kF32, step));
  };
  float *const gradient = state(Role::kGradient), *const master = state(Role::kMaster),
               *const moment1 = state(Role::kMoment1), *const moment2 = state(Role::kMoment2);
  const OptimizerSettings& o = parts_.optimizer;
  for (const ParameterSpec& parameter : parts_.model.layer(layer).parameters()) {
    const int64_t begin = std::max(parameter.offset, range.begin);
    const int64_t end = std::min(parameter.offset + parameter.count(), range.end());
    if (begin >= end) continue;
    AdamW a{};
    a.count = end - begin;
    a.master = master + (begin - range.begin);
    a.moment1 = moment1 + (begin - range.begin);
    a.moment2 = moment2 + (begin - range.begin);
    a.gradient = gradient + (begin - range.begin);
    a.gradient_scale = control.gradient_scale;
    a.learning_rate = control.learning_rate;
    a.beta1 = static_cast<float>(o.beta1);
    a.beta2 = static_cast<float>(o.beta2);
    a.epsilon = static_cast<float>(o.epsilon);
    a.weight_decay = parameter.decays() ? static_cast<float>(o.weight_decay) : 0;
    a.step = control.update;
    parts_.kernels.adamw(a);
  }
}

std::vector<OwnedBlock> TrainingBinder::blocks(const StepGraph& training) const {
  std::vector<OwnedBlock> blocks, copies;
  const Problem& p = parts_.problem;
  const int first = p.first_layer[static_cast<size_t>(p.stage_of(parts_.rank))];
  for (const Task& task : training.tasks) {
    if (task.kind != TaskKind::kUpdateShard || task.at.rank != parts_.rank) continue;
    OwnedBlock b;
    b.layer = task.at.layer_begin;
    b.copy = b.layer < first;
    b.range = updated(b.layer);
    const auto state = [&](Role role) {
      return reinterpret_cast<float*>(
          part(training, *training.find(task, role), b.layer, b.range, DType::kF32, 0));
    };
    b.master = state(Role::kMaster);
    b.moment1 = state(Role::kMoment1);
    b.moment2 = state(Role::kMoment2);
    if (parts_.dtype == DType::kF32 && p.sharding() < 3) b.whole = ref(b.master - b.range.begin);
    (b.copy ? copies : blocks).push_back(b);
  }
  for (const Task& task : training.tasks) {
    if (task.kind != TaskKind::kPrefetchWeights || task.at.rank != parts_.rank || task.at.micro_batch >= 0 ||
        !training.find(task, Role::kMaster))
      continue;
    for (auto* list : {&blocks, &copies})
      for (OwnedBlock& b : *list) {
        if (b.layer != task.at.layer_begin) continue;
        const Use& weights = *training.find(task, Role::kWeights);
        b.working = {part(training, weights, b.layer, b.range, parts_.dtype, 0), parts_.dtype};
        if (p.sharding() < 3) b.whole = {at(training, weights, 0), parts_.dtype};
      }
  }
  blocks.insert(blocks.end(), copies.begin(), copies.end());
  return blocks;
}

void TrainingBinder::refresh_working_weights(const StepGraph& training) {
  for (const OwnedBlock& b : blocks(training)) {
    if (b.working) parts_.kernels.convert(b.working, ref(b.master), b.range.count);
    parts_.device->compute().synchronise();
    if (b.whole && parts_.problem.sharding() > 0)
      wait(*gather(b.layer, static_cast<std::byte*>(b.whole.data), {}));
  }
}

}  // namespace trainer
