#include <map>

#include "schedule/passes.h"
#include "schedule/rank_writer.h"

namespace trainer {
namespace {

// Elements of one squared-norm block, as KernelSet::kNormBlock; and a bound on the tensors of one layer.
constexpr int64_t kNormBlock = 1 << 16, kTensorsPerLayer = 64;
// Two chunks in flight of the summing exchange.
constexpr int64_t kStagingBytes = int64_t{8} << 20;

// What the front end left for the state tasks of one rank.
struct RankState {
  std::map<int, BufferId> weights, gradients;  // by layer; the last gradient buffer added to
  BufferId shared_weights = kNone, shared_gradient = kNone, loss = kNone;
  TaskId last_backward = kNone;
};

std::map<int, RankState> collect(const StepGraphBuilder& builder) {
  std::map<int, RankState> ranks;
  for (TaskId id : builder.sequence()) {
    const Task& task = builder.draft().tasks[static_cast<size_t>(id)];
    RankState& rank = ranks[task.at.rank];
    if (task.kind == TaskKind::kBackward) rank.last_backward = id;
    for (const Use& use : task.uses) {
      if (use.role == Role::kWeights) rank.weights[task.at.layer_begin] = use.buffer;
      if (use.role == Role::kGradient) rank.gradients[task.at.layer_begin] = use.buffer;
      if (use.role == Role::kSharedWeights) rank.shared_weights = use.buffer;
      if (use.role == Role::kSharedGradient) rank.shared_gradient = use.buffer;
      if (use.role == Role::kLoss) rank.loss = use.buffer;
    }
  }
  return ranks;
}

class StepEndWriter : RankWriter {
 public:
  StepEndWriter(StepGraphBuilder& builder, const Problem& problem, int rank, RankState state)
      : RankWriter(builder, rank, problem.stage_of(rank)), problem_(problem), state_(std::move(state)) {}

  void write() {
    for (auto it = state_.gradients.rbegin(); it != state_.gradients.rend(); ++it)
      data_parallel_sync(it->first, it->second);
    tie_gradients();
    const BufferId control = norm();
    for (const auto& [layer, weights] : state_.weights)
      update(layer, weights, state_.gradients.at(layer), control);
    if (tied_copy()) update(0, state_.shared_weights, state_.shared_gradient, control);
  }

 private:
  bool tied_copy() const { return state_.shared_gradient != kNone && stage_ > 0; }

  // One batch at the step's end is what this pass means: nothing starts under the backward pass.
  Task step_end_task(TaskKind kind, LaneKind lane, int layer) const {
    Task t = task(kind, lane, -1, layer);
    t.after.push_back({state_.last_backward, 0});
    return t;
  }

  void sync(int layer, BufferId gradient, CommunicatorId communicator) {
    if (staging_ == kNone) staging_ = make("gradient exchange", kStagingBytes, Tier::kShort, true);
    Task t = step_end_task(TaskKind::kGradSync, LaneKind::kCollective, layer);
    t.communicator = communicator;
    t.bytes = builder_.buffer(gradient).bytes;
    t.uses = {{gradient, Access::kAccumulate, Role::kGradient}, {staging_, Access::kWrite, Role::kTemporary}};
    builder_.append(std::move(t));
  }

  void data_parallel_sync(int layer, BufferId gradient) {
    if (problem_.replicas == 1) return;
    if (layer == problem_.layer_count() - 1 && state_.shared_gradient != kNone)
      sync(0, state_.shared_gradient, kDataParallel);
    sync(layer, gradient, kDataParallel);
  }

  // The tied table's gradient is the embedding's plus the head's, in that order, wherever they are.
  void tie_gradients() {
    if (!problem_.tied()) return;
    if (problem_.stages == 1) {
      Task t = step_end_task(TaskKind::kGradFold, LaneKind::kCompute, 0);
      t.uses = {{state_.gradients.at(0), Access::kAccumulate, Role::kGradient},
                {state_.shared_gradient, Access::kRead, Role::kInput}};
      builder_.append(std::move(t));
    } else if (stage_ == 0) {
      sync(0, state_.gradients.at(0), kTiedEmbedding);
    } else if (tied_copy()) {
      sync(0, state_.shared_gradient, kTiedEmbedding);
    }
  }

  // Squares of each parameter held here, once (a tied copy is counted where the embedding is), then the
  // exchange after which every rank knows loss, norm and whether the step is skipped.
  BufferId norm() {
    int64_t doubles = 0;
    for (const auto& [layer, gradient] : state_.gradients)
      doubles += builder_.buffer(gradient).bytes / 4 / kNormBlock + kTensorsPerLayer;
    const BufferId norms = make("squares of gradients", doubles * 8, Tier::kShort, false);
    Task squares = step_end_task(TaskKind::kGradNorm, LaneKind::kCompute, -1);
    squares.uses.push_back({norms, Access::kWrite, Role::kNorms});
    for (const auto& [layer, gradient] : state_.gradients)
      squares.uses.push_back({gradient, Access::kRead, Role::kGradient, static_cast<int16_t>(layer)});
    builder_.append(std::move(squares));

    const BufferId control = make("step control", 64, Tier::kShort, false);
    Task exchange = step_end_task(TaskKind::kNormSync,
                                  problem_.world_size() > 1 ? LaneKind::kCollective : LaneKind::kCompute, -1);
    exchange.communicator = kWorld;
    exchange.uses = {{norms, Access::kRead, Role::kNorms}, {control, Access::kWrite, Role::kControl}};
    if (state_.loss != kNone) exchange.uses.push_back({state_.loss, Access::kRead, Role::kLoss});
    builder_.append(std::move(exchange));
    return control;
  }

  void update(int layer, BufferId weights, BufferId gradient, BufferId control) {
    const std::string name = problem_.layers[static_cast<size_t>(layer)].name;
    const int64_t bytes = problem_.layers[static_cast<size_t>(layer)].parameters * 4;
    const bool separate = problem_.element_bytes != 4;
    const BufferId master = separate ? make("master " + name, bytes, Tier::kLong, true) : weights;
    Task t = step_end_task(TaskKind::kUpdateShard, LaneKind::kCompute, layer);
    t.predicate = control;
    t.uses = {{gradient, Access::kRead, Role::kGradient},
              {control, Access::kRead, Role::kControl},
              {master, Access::kAccumulate, Role::kMaster},
              {make("moment1 " + name, bytes, Tier::kLong, true), Access::kAccumulate, Role::kMoment1},
              {make("moment2 " + name, bytes, Tier::kLong, true), Access::kAccumulate, Role::kMoment2}};
    builder_.append(std::move(t));
    if (!separate) return;
    Task refresh = step_end_task(TaskKind::kPrefetchWeights, LaneKind::kCompute, layer);
    refresh.predicate = control;
    refresh.uses = {{master, Access::kRead, Role::kMaster},
                    {weights, Access::kWrite, Role::kWeights},
                    {control, Access::kRead, Role::kControl}};
    builder_.append(std::move(refresh));
  }

  const Problem& problem_;
  RankState state_;
  BufferId staging_ = kNone;
};

class StepEndState : public Pass {
 public:
  void apply(StepGraphBuilder& builder, const Problem& problem) const override {
    for (auto& [rank, state] : collect(builder))
      StepEndWriter(builder, problem, rank, std::move(state)).write();
    builder.record_pass("step_end_state");
  }
};

}  // namespace

std::unique_ptr<Pass> make_step_end_state() { return std::make_unique<StepEndState>(); }

}  // namespace trainer
