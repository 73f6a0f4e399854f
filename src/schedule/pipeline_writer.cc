#include "schedule/pipeline_writer.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "base/error.h"
#include "schedule/fold_plan.h"
#include "schedule/rank_writer.h"

namespace trainer {
namespace {

// By pipeline rank and slot: the slot of the same rank behind which its send stands, the slot itself or a
// later one.
using SendPositions = std::vector<std::vector<size_t>>;

// A send that its receiver is not ready for keeps its buffer. Where ranks send in a circle, a receive must
// not wait for the memory of such a send, or all wait for each other; so a send stands where its receive is
// posted when the ranks run their slots in step.
SendPositions send_positions(const std::vector<std::vector<Slot>>& slots, int stages) {
  std::map<std::tuple<bool, int, int>, std::pair<size_t, size_t>> place;  // of a slot: rank, index
  SendPositions positions(slots.size());
  size_t left = 0;
  for (size_t r = 0; r < slots.size(); ++r)
    for (size_t k = 0; k < slots[r].size(); ++k, ++left) {
      place[{slots[r][k].forward, slots[r][k].stage, slots[r][k].micro_batch}] = {r, k};
      positions[r].push_back(k);
    }
  std::vector<size_t> done(slots.size());
  // Where the input of a slot comes from; nothing for the ends of the model.
  const auto source = [&](const Slot& slot) -> const std::pair<size_t, size_t>* {
    const int from = slot.forward ? slot.stage - 1 : slot.stage + 1;
    return from < 0 || from == stages ? nullptr : &place.at({slot.forward, from, slot.micro_batch});
  };
  while (left > 0) {
    const size_t before = left;
    for (size_t r = 0; r < slots.size(); ++r) {
      if (done[r] == slots[r].size()) continue;
      const auto* needed = source(slots[r][done[r]]);
      if (needed && done[needed->first] <= needed->second) continue;
      if (done[r] + 1 < slots[r].size()) {
        const auto* posted = source(slots[r][done[r] + 1]);
        if (posted && done[posted->first] > posted->second)
          positions[posted->first][posted->second] = done[posted->first] - 1;
      }
      ++done[r];
      --left;
    }
    require(left < before, "the slots of the pipeline ranks wait for each other");
  }
  return positions;
}

// Writes the program of one rank.
class PipelineRankWriter : RankWriter {
 public:
  PipelineRankWriter(StepGraphBuilder& builder, const Problem& problem, int rank, const FoldPlan& folds,
                     std::vector<Slot> slots, const std::vector<size_t>& send_positions)
      : RankWriter(builder, rank, problem.stage_of(rank)),
        problem_(problem),
        folds_(folds),
        slots_(std::move(slots)),
        sends_behind_(slots_.size()),
        stages_(stages_per_rank(problem) * problem.stages) {
    for (size_t k = 0; k < slots_.size(); ++k) sends_behind_[send_positions[k]].push_back(k);
    note_ends_of_virtual_ranks();
    make_state();
  }

  void write() {
    for (size_t k = 0; k < slots_.size(); ++k) {
      if (k == 0) receive(slots_[0]);
      if (k + 1 < slots_.size()) receive(slots_[k + 1]);
      if (slots_[k].forward)
        forward(slots_[k]);
      else
        backward(slots_[k]);
      for (size_t s : sends_behind_[k]) send(slots_[s]);
    }
  }

  // Transfers by (is forward, stage they leave, micro-batch), for matching across ranks.
  std::map<std::tuple<bool, int, int>, TaskId> sends, receives;

 private:
  int first_of(int stage) const { return problem_.first_layer[static_cast<size_t>(stage)]; }
  int last_of(int stage) const { return problem_.first_layer[static_cast<size_t>(stage) + 1] - 1; }
  // Whether this rank holds the first and the last stage.
  bool holds_first() const { return stage_ == 0; }
  bool holds_last() const { return stage_ == problem_.stages - 1; }
  // The rank of a neighbouring stage; kNone where there is none or it is this rank itself.
  int peer_of(int stage) const {
    if (stage < 0 || stage == stages_) return kNone;
    const int rank =
        problem_.rank_of(stage % problem_.stages, problem_.replica_of(rank_), problem_.tensor_of(rank_));
    return rank == rank_ ? kNone : rank;
  }
  Task stage_task(TaskKind kind, LaneKind lane, const Slot& slot, int layer) const {
    Task t = task(kind, lane, slot.micro_batch, layer);
    t.at.stage = static_cast<int16_t>(slot.stage);
    return t;
  }
  int gradient_buffers() const { return problem_.forward_only ? 0 : folds_.buffers; }
  int head() const { return problem_.layer_count() - 1; }
  const LayerCatalogue& layer(int index) const { return problem_.layers[static_cast<size_t>(index)]; }
  int virtual_rank(int m) const { return m / (problem_.micro_batches / problem_.virtual_ranks); }
  // Whether `slot` is the first or the last of its stage, direction and virtual rank.
  bool opens_virtual_rank(const Slot& slot) const { return ends_.at(key_of(slot)).first == slot; }
  bool closes_virtual_rank(const Slot& slot) const { return ends_.at(key_of(slot)).second == slot; }
  std::tuple<bool, int, int> key_of(const Slot& slot) const {
    return {slot.forward, slot.stage, virtual_rank(slot.micro_batch)};
  }
  void note_ends_of_virtual_ranks() {
    for (const Slot& slot : slots_) ends_.try_emplace(key_of(slot), slot, slot).first->second.second = slot;
  }

  void make_state() {
    const Tier weights_tier = problem_.element_bytes == 4 ? Tier::kLong : Tier::kMedium;
    int64_t temporary = 0;
    for (int stage = stage_; stage < stages_; stage += problem_.stages)
      temporary = std::max(temporary, make_layers(first_of(stage), last_of(stage), weights_tier));
    if (holds_last() && problem_.tied()) {
      const LayerCatalogue& owner = layer(0);
      shared_weights_ = holds_first() ? weights_[0]
                                      : make(fmt::format("weights {} (tied copy)", owner.name),
                                             owner.parameters * problem_.element_bytes, weights_tier, true);
      for (int k = 0; k < gradient_buffers(); ++k)
        shared_gradients_.push_back(make(fmt::format("gradient {} from head level {}", owner.name, k),
                                         owner.parameters * problem_.gradient_bytes, Tier::kMedium));
    }
    temporary_ = make("temporary", temporary, Tier::kShort, true);
    if (problem_.workspace_bytes > 0) make("workspace", problem_.workspace_bytes, Tier::kShort, true);
    if (problem_.tensor_staging_bytes > 0)
      make("tensor exchange", problem_.tensor_staging_bytes, Tier::kShort, true);
    if (holds_last() && !problem_.forward_only)
      loss_ = make("loss", 16 * problem_.virtual_ranks, Tier::kMedium);
  }

  // Returns the bytes of the largest temporary.
  int64_t make_layers(int first, int last, Tier weights_tier) {
    int64_t temporary = 0;
    for (int l = first; l <= last; ++l) {
      weights_[l] = make(fmt::format("weights {}", layer(l).name),
                         layer(l).parameters * problem_.element_bytes, weights_tier, true);
      for (int k = 0; k < gradient_buffers(); ++k)
        gradients_[l].push_back(make(fmt::format("gradient {} level {}", layer(l).name, k),
                                     layer(l).parameters * problem_.gradient_bytes, Tier::kMedium));
      temporary = std::max(temporary, layer(l).temporary_bytes);
    }
    return temporary;
  }

  void receive(const Slot& slot) {
    const int from = slot.forward ? slot.stage - 1 : slot.stage + 1;
    const int peer = peer_of(from), m = slot.micro_batch;
    if (peer == kNone) return;
    const int first = first_of(slot.stage), last = last_of(slot.stage);
    Task t = stage_task(TaskKind::kReceive,
                        slot.forward ? LaneKind::kReceiveForward : LaneKind::kReceiveBackward, slot, -1);
    t.communicator = peer;
    // Gradients towards activations have the activations' size.
    t.bytes = layer(slot.forward ? first - 1 : last).output_bytes + kBoundaryTrailerBytes;
    const BufferId into =
        make(fmt::format("{} of micro-batch {} received", slot.forward ? "input" : "gradient", m), t.bytes,
             slot.forward ? Tier::kMedium : Tier::kShort);
    (slot.forward ? outputs_[{first - 1, m}] : input_gradients_[{last + 1, m}]) = into;
    t.uses = {{into, Access::kWrite, Role::kOutput}};
    receives[{slot.forward, from, m}] = builder_.append(std::move(t));
  }

  int receiver_of(const Slot& slot) const { return peer_of(slot.forward ? slot.stage + 1 : slot.stage - 1); }

  void send(const Slot& slot) {
    if (receiver_of(slot) == kNone) return;
    const BufferId buffer = slot.forward ? outputs_.at({last_of(slot.stage), slot.micro_batch})
                                         : input_gradients_.at({first_of(slot.stage), slot.micro_batch});
    Task t = stage_task(TaskKind::kSend, slot.forward ? LaneKind::kSendForward : LaneKind::kSendBackward,
                        slot, -1);
    t.communicator = receiver_of(slot);
    t.bytes = builder_.buffer(buffer).bytes;
    t.uses = {{buffer, Access::kRead, Role::kInput}};
    sends[{slot.forward, slot.stage, slot.micro_batch}] = builder_.append(std::move(t));
  }

  void use_weights(Task& t, int l) const {
    t.uses.push_back({weights_.at(l), Access::kRead, Role::kWeights});
    if (l == head() && problem_.tied())
      t.uses.push_back({shared_weights_, Access::kRead, Role::kSharedWeights});
    t.uses.push_back({temporary_, Access::kWrite, Role::kTemporary});
  }

  void forward(const Slot& slot) {
    const int m = slot.micro_batch, last = last_of(slot.stage);
    const bool leaves = receiver_of(slot) != kNone;
    for (int l = first_of(slot.stage); l <= last; ++l) {
      Task t = stage_task(TaskKind::kForward, LaneKind::kCompute, slot, l);
      use_weights(t, l);
      if (l > 0) t.uses.push_back({outputs_.at({l - 1, m}), Access::kRead, Role::kInput});
      for (size_t i = 0; i < layer(l).saved.size() && !problem_.forward_only; ++i) {
        const SavedTensor& saved = layer(l).saved[i];
        const BufferId b = make(fmt::format("{} of {} micro-batch {}", saved.name, layer(l).name, m),
                                saved.bytes, Tier::kMedium);
        saved_[{l, m}].push_back(b);
        t.uses.push_back({b, Access::kWrite, Role::kSaved, static_cast<int16_t>(i)});
      }
      if (l == head() && !problem_.forward_only) {
        // The classifier's backward is fused with its forward, so gradients are added to here.
        const Access access = opens_virtual_rank(slot) ? Access::kWrite : Access::kAccumulate;
        const auto level = static_cast<size_t>(folds_.leaf[static_cast<size_t>(virtual_rank(m))]);
        t.uses.push_back({loss_, m == 0 ? Access::kWrite : Access::kAccumulate, Role::kLoss,
                          static_cast<int16_t>(virtual_rank(m))});
        t.uses.push_back({gradients_.at(l)[level], access, Role::kGradient});
        if (problem_.tied()) t.uses.push_back({shared_gradients_[level], access, Role::kSharedGradient});
      } else if (l < head()) {
        const int64_t trailer = leaves && l == last ? kBoundaryTrailerBytes : 0;
        outputs_[{l, m}] = make(fmt::format("output of {} micro-batch {}", layer(l).name, m),
                                layer(l).output_bytes + trailer, Tier::kMedium);
        t.uses.push_back({outputs_.at({l, m}), Access::kWrite, Role::kOutput});
      }
      builder_.append(std::move(t));
    }
  }

  void backward(const Slot& slot) {
    const int m = slot.micro_batch, v = virtual_rank(m), first = first_of(slot.stage);
    const bool leaves = receiver_of(slot) != kNone;
    const auto level = static_cast<size_t>(folds_.leaf[static_cast<size_t>(v)]);
    for (int l = last_of(slot.stage); l >= first; --l) {
      Task t = stage_task(TaskKind::kBackward, LaneKind::kCompute, slot, l);
      use_weights(t, l);
      if (l > 0) t.uses.push_back({outputs_.at({l - 1, m}), Access::kRead, Role::kInput});
      if (l < head()) t.uses.push_back({input_gradients_.at({l + 1, m}), Access::kRead, Role::kInput, 1});
      if (const auto saved = saved_.find({l, m}); saved != saved_.end())
        for (size_t i = 0; i < saved->second.size(); ++i)
          t.uses.push_back({saved->second[i], Access::kRead, Role::kSaved, static_cast<int16_t>(i)});
      const bool opens = opens_virtual_rank(slot) && l != head();
      t.uses.push_back(
          {gradients_.at(l)[level], opens ? Access::kWrite : Access::kAccumulate, Role::kGradient});
      if (l > 0) {
        input_gradients_[{l, m}] =
            make(fmt::format("gradient into {} micro-batch {}", layer(l).name, m),
                 layer(l).gradient_bytes + (leaves && l == first ? kBoundaryTrailerBytes : 0), Tier::kShort);
        t.uses.push_back({input_gradients_.at({l, m}), Access::kWrite, Role::kOutput});
      }
      builder_.append(std::move(t));
      if (closes_virtual_rank(slot)) {
        fold(slot.stage, l, v, gradients_.at(l), Role::kGradient);
        if (l == head() && problem_.tied()) fold(slot.stage, l, v, shared_gradients_, Role::kSharedGradient);
      }
    }
  }

  void fold(int stage, int l, int v, const std::vector<BufferId>& levels, Role role) {
    for (const auto& f : folds_.folds[static_cast<size_t>(v)]) {
      Task t = stage_task(TaskKind::kGradFold, LaneKind::kCompute, {false, -1, stage}, l);
      t.uses = {{levels[static_cast<size_t>(f.into)], Access::kAccumulate, role},
                {levels[static_cast<size_t>(f.from)], Access::kRead, Role::kInput}};
      builder_.append(std::move(t));
    }
  }

  const Problem& problem_;
  const FoldPlan& folds_;
  std::vector<Slot> slots_;
  std::vector<std::vector<size_t>> sends_behind_;
  int stages_;  // of all ranks
  std::map<std::tuple<bool, int, int>, std::pair<Slot, Slot>> ends_;
  std::map<int, BufferId> weights_;
  std::map<int, std::vector<BufferId>> gradients_;  // [layer][level]
  BufferId shared_weights_ = kNone, temporary_ = kNone, loss_ = kNone;
  std::vector<BufferId> shared_gradients_;
  std::map<std::pair<int, int>, BufferId> outputs_, input_gradients_;  // (layer, micro-batch)
  std::map<std::pair<int, int>, std::vector<BufferId>> saved_;
};

}  // namespace

int stages_per_rank(const Problem& problem) {
  const int stages = static_cast<int>(problem.first_layer.size()) - 1;
  require(stages > 0 && stages % problem.stages == 0, "{} stages over {} pipeline ranks", stages,
          problem.stages);
  return stages / problem.stages;
}

void write_pipeline(StepGraphBuilder& builder, const Problem& problem, const PipelineSlots& slots) {
  require(problem.micro_batches % problem.virtual_ranks == 0, "{} micro-batches over {} virtual ranks",
          problem.micro_batches, problem.virtual_ranks);
  // Where shards accumulate, whole gradients are parts of them, which the state tasks fold.
  const auto count = static_cast<size_t>(problem.virtual_ranks);
  const FoldPlan folds =
      problem.accumulates_shards()
          ? FoldPlan{std::vector<int>(count), std::vector<std::vector<FoldPlan::Fold>>(count), 1}
          : plan_folds(problem.virtual_ranks);
  std::vector<std::vector<Slot>> all;
  for (int p = 0; p < problem.stages; ++p) all.push_back(slots(p));
  const int per_rank = stages_per_rank(problem);
  SendPositions positions;
  if (per_rank > 1) positions = send_positions(all, per_rank * problem.stages);
  std::map<int, PipelineRankWriter> writers;
  for (int rank : problem.ranks_to_build()) {
    const auto p = static_cast<size_t>(problem.stage_of(rank));
    std::vector<size_t> mine(all[p].size());
    std::iota(mine.begin(), mine.end(), size_t{0});
    if (per_rank > 1) mine = positions[p];
    writers.try_emplace(rank, builder, problem, rank, folds, all[p], mine).first->second.write();
  }
  for (auto& [rank, writer] : writers)
    for (const auto& [which, receive] : writer.receives) {
      const auto peer = writers.find(builder.task(receive).communicator);
      if (peer != writers.end()) builder.task(receive).after.push_back({peer->second.sends.at(which), 0});
    }
}

}  // namespace trainer
