#include "schedule/one_f_one_b.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "schedule/rank_writer.h"

namespace trainer {
namespace {

// Gradient buffers of a rank that runs its virtual ranks one after the other and sums them by a fixed binary
// tree: which buffer each virtual rank accumulates into, and which pairs are added after it. log2(count) + 1
// buffers.
struct FoldPlan {
  struct Fold {
    int into, from;
  };
  std::vector<int> leaf;                 // [virtual rank]
  std::vector<std::vector<Fold>> folds;  // [virtual rank], in order
  int buffers = 1;
};

FoldPlan plan_folds(int count) {
  FoldPlan plan;
  std::vector<std::pair<int, int>> stack;  // (buffer, leaves under it)
  std::vector<bool> taken;
  for (int v = 0; v < count; ++v) {
    const auto free = std::find(taken.begin(), taken.end(), false);
    const int leaf = static_cast<int>(free - taken.begin());
    if (free == taken.end())
      taken.push_back(true);
    else
      *free = true;
    plan.leaf.push_back(leaf);
    plan.folds.emplace_back();
    stack.emplace_back(leaf, 1);
    while (stack.size() >= 2 && stack.back().second == stack[stack.size() - 2].second) {
      const auto right = stack.back();
      stack.pop_back();
      plan.folds.back().push_back({stack.back().first, right.first});
      stack.back().second += right.second;
      taken[static_cast<size_t>(right.first)] = false;
    }
  }
  plan.buffers = static_cast<int>(taken.size());
  require(stack.size() == 1 && stack.front().first == 0, "virtual ranks must be a power of two");
  return plan;
}

// Writes the program of one rank.
class StageWriter : RankWriter {
 public:
  StageWriter(StepGraphBuilder& builder, const Problem& problem, int rank, const FoldPlan& folds)
      : RankWriter(builder, rank, problem.stage_of(rank)),
        problem_(problem),
        folds_(folds),
        first_(problem.first_layer[static_cast<size_t>(stage_)]),
        last_(problem.first_layer[static_cast<size_t>(stage_) + 1] - 1) {
    make_state();
  }

  void write() {
    const auto slots =
        one_f_one_b_slots(problem_.stages, stage_, problem_.micro_batches, problem_.forward_only);
    for (size_t k = 0; k < slots.size(); ++k) {
      if (k == 0) receive(slots[0]);
      if (k + 1 < slots.size()) receive(slots[k + 1]);
      if (slots[k].forward)
        forward(slots[k].micro_batch);
      else
        backward(slots[k].micro_batch);
    }
  }

  // Transfers by (is forward, micro-batch), for matching across ranks.
  std::map<std::pair<bool, int>, TaskId> sends, receives;

 private:
  bool first_stage() const { return stage_ == 0; }
  bool last_stage() const { return stage_ == problem_.stages - 1; }
  int gradient_buffers() const { return problem_.forward_only ? 0 : folds_.buffers; }
  int head() const { return problem_.layer_count() - 1; }
  const LayerCatalogue& layer(int index) const { return problem_.layers[static_cast<size_t>(index)]; }
  int virtual_rank(int m) const { return m / (problem_.micro_batches / problem_.virtual_ranks); }
  bool opens_virtual_rank(int m) const { return m % (problem_.micro_batches / problem_.virtual_ranks) == 0; }
  bool closes_virtual_rank(int m) const {
    return (m + 1) % (problem_.micro_batches / problem_.virtual_ranks) == 0;
  }

  void make_state() {
    const Tier weights_tier = problem_.element_bytes == 4 ? Tier::kLong : Tier::kMedium;
    int64_t temporary = 0;
    for (int l = first_; l <= last_; ++l) {
      weights_[l] = make(fmt::format("weights {}", layer(l).name),
                         layer(l).parameters * problem_.element_bytes, weights_tier, true);
      for (int k = 0; k < gradient_buffers(); ++k)
        gradients_[l].push_back(make(fmt::format("gradient {} level {}", layer(l).name, k),
                                     layer(l).parameters * 4, Tier::kMedium));
      temporary = std::max(temporary, layer(l).temporary_bytes);
    }
    if (last_stage() && problem_.tied()) {
      const LayerCatalogue& owner = layer(0);
      shared_weights_ = first_stage() ? weights_[0]
                                      : make(fmt::format("weights {} (tied copy)", owner.name),
                                             owner.parameters * problem_.element_bytes, weights_tier, true);
      for (int k = 0; k < gradient_buffers(); ++k)
        shared_gradients_.push_back(make(fmt::format("gradient {} from head level {}", owner.name, k),
                                         owner.parameters * 4, Tier::kMedium));
    }
    temporary_ = make("temporary", temporary, Tier::kShort, true);
    if (problem_.workspace_bytes > 0) make("workspace", problem_.workspace_bytes, Tier::kShort, true);
    if (last_stage() && !problem_.forward_only)
      loss_ = make("loss", 16 * problem_.virtual_ranks, Tier::kMedium);
  }

  int64_t boundary_bytes(bool forward) const {
    // Gradients towards activations have the activations' size.
    return layer(forward ? first_ - 1 : last_).output_bytes + kBoundaryTrailerBytes;
  }

  void receive(const Slot& slot) {
    if (slot.forward ? first_stage() : last_stage()) return;
    const int m = slot.micro_batch;
    const int peer = problem_.rank_of(slot.forward ? stage_ - 1 : stage_ + 1, problem_.replica_of(rank_));
    Task t = task(TaskKind::kReceive, slot.forward ? LaneKind::kReceiveForward : LaneKind::kReceiveBackward,
                  m, -1);
    t.communicator = peer;
    t.bytes = boundary_bytes(slot.forward);
    const BufferId into =
        make(fmt::format("{} of micro-batch {} received", slot.forward ? "input" : "gradient", m), t.bytes,
             slot.forward ? Tier::kMedium : Tier::kShort);
    (slot.forward ? outputs_[{first_ - 1, m}] : input_gradients_[{last_ + 1, m}]) = into;
    t.uses = {{into, Access::kWrite, Role::kOutput}};
    receives[{slot.forward, m}] = builder_.append(std::move(t));
  }

  void send(bool forward, int m, BufferId buffer) {
    const int peer = problem_.rank_of(forward ? stage_ + 1 : stage_ - 1, problem_.replica_of(rank_));
    Task t = task(TaskKind::kSend, forward ? LaneKind::kSendForward : LaneKind::kSendBackward, m, -1);
    t.communicator = peer;
    t.bytes = builder_.buffer(buffer).bytes;
    t.uses = {{buffer, Access::kRead, Role::kInput}};
    sends[{forward, m}] = builder_.append(std::move(t));
  }

  void use_weights(Task& t, int l) const {
    t.uses.push_back({weights_.at(l), Access::kRead, Role::kWeights});
    if (l == head() && problem_.tied())
      t.uses.push_back({shared_weights_, Access::kRead, Role::kSharedWeights});
    t.uses.push_back({temporary_, Access::kWrite, Role::kTemporary});
  }

  void forward(int m) {
    for (int l = first_; l <= last_; ++l) {
      Task t = task(TaskKind::kForward, LaneKind::kCompute, m, l);
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
        const Access access = opens_virtual_rank(m) ? Access::kWrite : Access::kAccumulate;
        const auto level = static_cast<size_t>(folds_.leaf[static_cast<size_t>(virtual_rank(m))]);
        t.uses.push_back({loss_, m == 0 ? Access::kWrite : Access::kAccumulate, Role::kLoss,
                          static_cast<int16_t>(virtual_rank(m))});
        t.uses.push_back({gradients_.at(l)[level], access, Role::kGradient});
        if (problem_.tied()) t.uses.push_back({shared_gradients_[level], access, Role::kSharedGradient});
      } else if (l < head()) {
        const bool leaves = l == last_;
        outputs_[{l, m}] = make(fmt::format("output of {} micro-batch {}", layer(l).name, m),
                                layer(l).output_bytes + (leaves ? kBoundaryTrailerBytes : 0), Tier::kMedium);
        t.uses.push_back({outputs_.at({l, m}), Access::kWrite, Role::kOutput});
      }
      builder_.append(std::move(t));
    }
    if (!last_stage()) send(true, m, outputs_.at({last_, m}));
  }

  void backward(int m) {
    const int v = virtual_rank(m);
    const auto level = static_cast<size_t>(folds_.leaf[static_cast<size_t>(v)]);
    for (int l = last_; l >= first_; --l) {
      Task t = task(TaskKind::kBackward, LaneKind::kCompute, m, l);
      use_weights(t, l);
      if (l > 0) t.uses.push_back({outputs_.at({l - 1, m}), Access::kRead, Role::kInput});
      if (l < head()) t.uses.push_back({input_gradients_.at({l + 1, m}), Access::kRead, Role::kInput, 1});
      if (const auto saved = saved_.find({l, m}); saved != saved_.end())
        for (size_t i = 0; i < saved->second.size(); ++i)
          t.uses.push_back({saved->second[i], Access::kRead, Role::kSaved, static_cast<int16_t>(i)});
      const bool opens = opens_virtual_rank(m) && l != head();
      t.uses.push_back(
          {gradients_.at(l)[level], opens ? Access::kWrite : Access::kAccumulate, Role::kGradient});
      if (l > 0) {
        input_gradients_[{l, m}] =
            make(fmt::format("gradient into {} micro-batch {}", layer(l).name, m),
                 layer(l).gradient_bytes + (l == first_ ? kBoundaryTrailerBytes : 0), Tier::kShort);
        t.uses.push_back({input_gradients_.at({l, m}), Access::kWrite, Role::kOutput});
      }
      builder_.append(std::move(t));
      if (closes_virtual_rank(m)) {
        fold(l, v, gradients_.at(l), Role::kGradient);
        if (l == head() && problem_.tied()) fold(l, v, shared_gradients_, Role::kSharedGradient);
      }
    }
    if (!first_stage()) send(false, m, input_gradients_.at({first_, m}));
  }

  void fold(int l, int v, const std::vector<BufferId>& levels, Role role) {
    for (const auto& f : folds_.folds[static_cast<size_t>(v)]) {
      Task t = task(TaskKind::kGradFold, LaneKind::kCompute, -1, l);
      t.uses = {{levels[static_cast<size_t>(f.into)], Access::kAccumulate, role},
                {levels[static_cast<size_t>(f.from)], Access::kRead, Role::kInput}};
      builder_.append(std::move(t));
    }
  }

  const Problem& problem_;
  const FoldPlan& folds_;
  int first_, last_;
  std::map<int, BufferId> weights_;
  std::map<int, std::vector<BufferId>> gradients_;  // [layer][level]
  BufferId shared_weights_ = kNone, temporary_ = kNone, loss_ = kNone;
  std::vector<BufferId> shared_gradients_;
  std::map<std::pair<int, int>, BufferId> outputs_, input_gradients_;  // (layer, micro-batch)
  std::map<std::pair<int, int>, std::vector<BufferId>> saved_;
};

}  // namespace

std::vector<Slot> one_f_one_b_slots(int stages, int stage, int micro_batches, bool forward_only) {
  const int warm_up = forward_only ? micro_batches : warm_up_micro_batches(stages, stage, micro_batches);
  std::vector<Slot> slots;
  for (int m = 0; m < warm_up; ++m) slots.push_back({true, m});
  for (int i = 0; i < micro_batches - warm_up; ++i) {
    slots.push_back({true, warm_up + i});
    slots.push_back({false, i});
  }
  if (forward_only) return slots;
  for (int m = micro_batches - warm_up; m < micro_batches; ++m) slots.push_back({false, m});
  return slots;
}

void one_f_one_b(StepGraphBuilder& builder, const Problem& problem) {
  require(problem.micro_batches % problem.virtual_ranks == 0, "{} micro-batches over {} virtual ranks",
          problem.micro_batches, problem.virtual_ranks);
  const FoldPlan folds = plan_folds(problem.virtual_ranks);
  std::map<int, StageWriter> writers;
  for (int rank : problem.ranks_to_build())
    writers.try_emplace(rank, builder, problem, rank, folds).first->second.write();
  for (auto& [rank, writer] : writers)
    for (const auto& [which, receive] : writer.receives) {
      const auto peer = writers.find(builder.task(receive).communicator);
      if (peer != writers.end()) builder.task(receive).after.push_back({peer->second.sends.at(which), 0});
    }
  builder.record_pass("one_f_one_b");
}

}  // namespace trainer
