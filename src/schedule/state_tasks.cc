#include "schedule/state_tasks.h"

#include <fmt/format.h>

#include <map>

#include "schedule/fold_plan.h"
#include "schedule/rank_writer.h"
#include "schedule/shards.h"

namespace trainer {
namespace {

// Two chunks in flight of the summing exchange.
constexpr int64_t kStagingBytes = int64_t{8} << 20;

// A layer's gradient on one rank: that of its own block, or the last stage's for a tied embedding's.
struct GradientOf {
  int layer;
  bool shared;
  auto operator<=>(const GradientOf&) const = default;
};

// What the front end left for the state tasks of one rank.
struct RankState {
  std::map<int, BufferId> weights;
  std::map<GradientOf, BufferId> gradients;  // the last buffer added to
  BufferId shared_weights = kNone, loss = kNone;
  MainPathEnds ends;
};

bool is_gradient(const Use& use) { return use.role == Role::kGradient || use.role == Role::kSharedGradient; }

GradientOf gradient_of(const Task& task, const Use& use) {
  const bool shared = use.role == Role::kSharedGradient;
  return {shared ? 0 : task.at.layer_begin, shared};
}

std::map<int, RankState> collect(const StepGraphBuilder& builder) {
  std::map<int, RankState> ranks;
  for (const auto& [rank, ends] : main_path_ends(builder)) ranks[rank].ends = ends;
  for (TaskId id : builder.sequence()) {
    const Task& task = builder.draft().tasks[static_cast<size_t>(id)];
    RankState& rank = ranks[task.at.rank];
    for (const Use& use : task.uses) {
      if (use.role == Role::kWeights) rank.weights[task.at.layer_begin] = use.buffer;
      if (use.role == Role::kSharedWeights) rank.shared_weights = use.buffer;
      if (use.role == Role::kLoss) rank.loss = use.buffer;
      if (is_gradient(use)) rank.gradients[gradient_of(task, use)] = use.buffer;
    }
  }
  return ranks;
}

class StateWriter : RankWriter {
 public:
  StateWriter(StepGraphBuilder& builder, const Problem& problem, int rank, RankState state)
      : RankWriter(builder, rank, problem.stage_of(rank)),
        problem_(problem),
        state_(std::move(state)),
        replica_(problem.replica_of(rank)) {}

  void write() {
    if (problem_.accumulates_shards()) accumulate_shards();
    const BufferId control = make("step control", 64, Tier::kShort, false);
    // Every rank's loss is complete before any rank's last backward begins.
    if (!problem_.updates_wait_for_norm) exchange(control, kNone);
    if (!problem_.accumulates_shards())
      for (auto it = state_.gradients.rbegin(); it != state_.gradients.rend(); ++it)
        if (problem_.replicas > 1) sync(it->first, it->second, kDataParallel);
    tie_gradients();
    const BufferId norms = write_norms();
    exchange(problem_.updates_wait_for_norm ? control : kNone, norms);
    for (const auto& [layer, weights] : state_.weights) update({layer, false}, weights, control);
    if (tied_copy()) update({0, true}, state_.shared_weights, control);
  }

 private:
  const LayerCatalogue& layer(int index) const { return problem_.layers[static_cast<size_t>(index)]; }
  bool tied_copy() const { return state_.gradients.count({0, true}) > 0 && stage_ > 0; }
  ShardRange own(int index) const { return shard_range(layer(index), problem_.replicas, replica_); }
  // Of the parameters that this rank updates.
  int64_t updated(int index) const {
    return problem_.sharding() == 0 ? layer(index).parameters : own(index).count;
  }
  LaneKind world_lane() const {
    return problem_.world_size() > 1 ? LaneKind::kCollective : LaneKind::kCompute;
  }

  BufferId staging() {
    if (staging_ == kNone) staging_ = make("gradient exchange", kStagingBytes, Tier::kShort, true);
    return staging_;
  }

  Task held_task(TaskKind kind, LaneKind lane, int layer) const {
    Task t = task(kind, lane, -1, layer);
    t.after.push_back({state_.ends.last_backward, 0});
    return t;
  }

  Task sync_task(Task t, BufferId gradient, CommunicatorId communicator) {
    t.communicator = communicator;
    t.bytes = builder_.buffer(gradient).bytes;
    t.uses = {{gradient, Access::kAccumulate, Role::kGradient},
              {staging(), Access::kWrite, Role::kTemporary}};
    return t;
  }

  void sync(GradientOf which, BufferId gradient, CommunicatorId communicator) {
    builder_.append(sync_task(held_task(TaskKind::kGradSync, LaneKind::kCollective, which.layer), gradient,
                              communicator));
  }

  // A part of the gradient, of one micro-batch or virtual rank, has a buffer of its own, which is summed over
  // the replicas, added to a shard and given up. Shards add parts in turn, or by a reproducible group's tree.
  void accumulate_shards() {
    const int parts = problem_.parts(), micro_batches_of_part = problem_.micro_batches / parts;
    FoldPlan plan;
    if (problem_.reproducible_group) plan = plan_folds(parts);
    std::map<GradientOf, std::vector<BufferId>> shards;  // by level
    for (const auto& [which, buffer] : state_.gradients)
      for (int level = 0; level < plan.buffers; ++level)
        shards[which].push_back(make(fmt::format("{} shard {}", builder_.buffer(buffer).name, level),
                                     own(which.layer).count * problem_.gradient_bytes, Tier::kMedium));
    using Key = std::pair<GradientOf, int>;
    std::map<Key, BufferId> buffers;
    std::map<Key, TaskId> last_user;
    const auto sequence = builder_.sequence();
    std::vector<TaskId> backwards;
    for (TaskId id : sequence) {
      if (builder_.task(id).at.rank != rank_) continue;
      const int part = builder_.task(id).at.micro_batch / micro_batches_of_part;
      for (size_t u = 0; u < builder_.task(id).uses.size(); ++u) {
        const Use use = builder_.task(id).uses[u];
        if (!is_gradient(use)) continue;
        const Key key{gradient_of(builder_.task(id), use), part};
        const auto [buffer, fresh] = buffers.try_emplace(key, kNone);
        if (fresh)
          buffer->second = make(fmt::format("{} part {}", builder_.buffer(use.buffer).name, part),
                                builder_.buffer(use.buffer).bytes, Tier::kShort);
        builder_.task(id).uses[u].buffer = buffer->second;
        builder_.task(id).uses[u].access = fresh ? Access::kWrite : Access::kAccumulate;
        last_user[key] = id;
      }
      if (builder_.task(id).kind == TaskKind::kBackward) backwards.push_back(id);
    }
    // The fold comes one backward later: its sum has had that long to arrive.
    std::map<TaskId, TaskId> next_backward;
    TaskId next = backwards.back();
    for (auto it = sequence.rbegin(); it != sequence.rend(); ++it) {
      if (builder_.task(*it).at.rank != rank_) continue;
      next_backward[*it] = next;
      if (builder_.task(*it).kind == TaskKind::kBackward) next = *it;
    }
    std::vector<std::pair<TaskId, TaskId>> moves;
    for (TaskId id : sequence)
      for (const auto& [key, user] : last_user) {
        if (user != id) continue;
        const auto& [which, part] = key;
        const int m = builder_.task(id).at.micro_batch;
        moves.emplace_back(
            builder_.append(sync_task(task(TaskKind::kGradSync, LaneKind::kCollective, m, which.layer),
                                      buffers[key], kDataParallel)),
            user);
        const auto fold = [&](int into, Access access, BufferId from) {
          Task t = task(TaskKind::kGradFold, LaneKind::kCompute, m, which.layer);
          t.uses = {{shards[which][static_cast<size_t>(into)], access, Role::kGradient},
                    {from, Access::kRead, Role::kInput}};
          moves.emplace_back(builder_.append(std::move(t)), next_backward.at(user));
        };
        if (!problem_.reproducible_group) {
          fold(0, part == 0 ? Access::kWrite : Access::kAccumulate, buffers[key]);
          continue;
        }
        fold(plan.leaf[static_cast<size_t>(part)], Access::kWrite, buffers[key]);
        for (const auto& f : plan.folds[static_cast<size_t>(part)])
          fold(f.into, Access::kAccumulate, shards[which][static_cast<size_t>(f.from)]);
      }
    builder_.move_behind(moves);
    for (auto& [which, buffer] : state_.gradients) {
      builder_.buffer(buffer).bytes = 0;
      buffer = shards[which].front();
    }
  }

  // The tied table's gradient is the embedding's plus the head's, in that order, wherever they are.
  void tie_gradients() {
    if (!problem_.tied()) return;
    if (problem_.stages == 1) {
      Task t = held_task(TaskKind::kGradFold, LaneKind::kCompute, 0);
      t.uses = {{state_.gradients.at({0, false}), Access::kAccumulate, Role::kGradient},
                {state_.gradients.at({0, true}), Access::kRead, Role::kInput}};
      builder_.append(std::move(t));
    } else if (stage_ == 0) {
      sync({0, false}, state_.gradients.at({0, false}), kTiedEmbedding);
    } else if (tied_copy()) {
      sync({0, true}, state_.gradients.at({0, true}), kTiedEmbedding);
    }
  }

  // Squares of this replica's part of each parameter held here (a tied copy is counted where the embedding
  // is).
  BufferId write_norms() {
    int64_t blocks = 0;
    for (const auto& [layer_index, weights] : state_.weights)
      blocks += norm_block_count(layer(layer_index), own(layer_index));
    const BufferId norms = make("squares of gradients", blocks * 8, Tier::kShort, false);
    bool first = true;
    for (auto it = state_.weights.rbegin(); it != state_.weights.rend(); ++it) {
      Task t = held_task(TaskKind::kGradNorm, LaneKind::kCompute, it->first);
      t.uses = {{state_.gradients.at({it->first, false}), Access::kRead, Role::kGradient},
                {norms, first ? Access::kWrite : Access::kAccumulate, Role::kNorms}};
      first = false;
      builder_.append(std::move(t));
    }
    return norms;
  }

  // After it every rank knows the loss, or the norm, or both; with both, whether the step is skipped.
  void exchange(BufferId control, BufferId norms) {
    Task t = task(TaskKind::kNormSync, world_lane(), -1, -1);
    if (norms != kNone) t.after.push_back({state_.ends.last_backward, 0});
    t.communicator = kWorld;
    if (norms != kNone) t.uses.push_back({norms, Access::kRead, Role::kNorms});
    if (control != kNone) {
      t.uses.push_back({control, Access::kWrite, Role::kControl});
      if (state_.loss != kNone) t.uses.push_back({state_.loss, Access::kRead, Role::kLoss});
    }
    const TaskId id = builder_.append(std::move(t));
    if (norms == kNone) builder_.move_behind({{id, state_.ends.last_forward}});
  }

  void update(GradientOf which, BufferId weights, BufferId control) {
    const std::string name =
        layer(which.layer).name + (which.shared ? std::string(" (tied copy)") : std::string());
    const int64_t elements = updated(which.layer);
    const bool separate = problem_.element_bytes != 4;
    const BufferId master = separate ? make("master " + name, elements * 4, Tier::kLong, true) : weights;
    Task t = held_task(TaskKind::kUpdateShard, LaneKind::kCompute, which.layer);
    t.predicate = control;
    t.uses = {
        {state_.gradients.at(which), Access::kRead, Role::kGradient},
        {control, Access::kRead, Role::kControl},
        {master, Access::kAccumulate, Role::kMaster},
        {make("moment1 " + name, elements * 4, Tier::kLong, true), Access::kAccumulate, Role::kMoment1},
        {make("moment2 " + name, elements * 4, Tier::kLong, true), Access::kAccumulate, Role::kMoment2}};
    builder_.append(std::move(t));
    if (separate) {
      Task refresh = held_task(TaskKind::kPrefetchWeights, LaneKind::kCompute, which.layer);
      refresh.predicate = control;
      refresh.uses = {{master, Access::kRead, Role::kMaster},
                      {weights, Access::kAccumulate, Role::kWeights},
                      {control, Access::kRead, Role::kControl}};
      builder_.append(std::move(refresh));
    }
    if (problem_.sharding() == 1 || problem_.sharding() == 2) {
      Task gather = held_task(TaskKind::kPrefetchWeights, LaneKind::kCollective, which.layer);
      gather.predicate = control;
      gather.communicator = kDataParallel;
      gather.bytes = builder_.buffer(weights).bytes;
      gather.uses = {{weights, Access::kAccumulate, Role::kWeights},
                     {control, Access::kRead, Role::kControl}};
      builder_.append(std::move(gather));
    }
  }

  const Problem& problem_;
  RankState state_;
  const int replica_;
  BufferId staging_ = kNone;
};

}  // namespace

std::map<int, MainPathEnds> main_path_ends(const StepGraphBuilder& builder) {
  std::map<int, MainPathEnds> ranks;
  for (TaskId id : builder.sequence()) {
    const Task& task = builder.draft().tasks[static_cast<size_t>(id)];
    MainPathEnds& ends = ranks[task.at.rank];
    if (task.kind == TaskKind::kBackward) ends.last_backward = id;
    if (task.kind != TaskKind::kForward) continue;
    if (ends.first_forward == kNone) ends.first_forward = id;
    ends.last_forward = id;
  }
  return ranks;
}

bool is_state_task(TaskKind kind) {
  return kind == TaskKind::kGradFold || kind == TaskKind::kGradSync || kind == TaskKind::kGradNorm ||
         kind == TaskKind::kNormSync || kind == TaskKind::kUpdateShard || kind == TaskKind::kPrefetchWeights;
}

void write_state_tasks(StepGraphBuilder& builder, const Problem& problem) {
  const auto ranks = collect(builder);
  for (const auto& [rank, state] : ranks) StateWriter(builder, problem, rank, state).write();
  const auto sequence = builder.sequence();
  for (TaskId id : sequence) {
    const Task& task = builder.task(id);
    const bool ends_step = task.kind == TaskKind::kUpdateShard ||
                           (task.kind == TaskKind::kPrefetchWeights && task.at.micro_batch < 0);
    if (ends_step) builder.task(ranks.at(task.at.rank).ends.first_forward).after.push_back({id, 1});
  }
  builder.record_pass(fmt::format("zero_{}", problem.zero_stage));
}

}  // namespace trainer
