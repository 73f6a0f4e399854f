#include "schedule/sequence_pipeline.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "schedule/rank_writer.h"

namespace trainer {
namespace {

class SequenceWriter {
 public:
  SequenceWriter(StepGraphBuilder& builder, const Problem& problem, const SequencePipeline& plan)
      : builder_(builder),
        problem_(problem),
        plan_(plan),
        count_(static_cast<int>(plan.segments.size())),
        tokens_(std::accumulate(plan.segments.begin(), plan.segments.end(), int64_t{0})) {
    check();
    for (int i = 0; i < stages(); ++i) {
      BoundarySets sets;
      sets.steady = {0, count_};
      if (plan.multiplex && stages() > 1) sets = boundary_sets(stages(), count_, i);
      sets_.push_back(sets);
    }
  }

  void write() {
    for (int i = 0; i < stages(); ++i) make_state(i, i);
    for (int i = 0; i < stages(); ++i)
      for (int r = 0; r < stages(); ++r) {
        const BoundarySets& sets = sets_[static_cast<size_t>(i)];
        if (r != i && (sets.left_stages.contains(r) || sets.right_stages.contains(r))) make_state(i, r);
      }
    for (int m = 0; m < problem_.micro_batches; ++m) {
      // What stages do at the same time stands together, so that a helper finds its turn.
      for (bool forward : {true, false})
        for (int t = 0; t < stages() + count_ - 1; ++t)
          for (int k = 0; k < stages(); ++k) {
            const int i = forward ? k : stages() - 1 - k, x = forward ? t - k : count_ - 1 - (t - k);
            if (x >= 0 && x < count_) run(forward, i, x, m);
          }
      carries_.clear();
      activations_.clear();
      gradients_in_.clear();
      saved_.clear();
    }
    for (int i = 0; i < stages(); ++i) fold_helpers(i);
  }

 private:
  using StageRank = std::pair<int, int>;  // stage, rank
  using Place = std::array<int, 3>;       // rank, layer, segment

  int stages() const { return problem_.stages; }
  int head() const { return problem_.layer_count() - 1; }
  int first(int stage) const { return problem_.first_layer[static_cast<size_t>(stage)]; }
  int end(int stage) const { return problem_.first_layer[static_cast<size_t>(stage) + 1]; }
  const LayerCatalogue& layer(int l) const { return problem_.layers[static_cast<size_t>(l)]; }

  void check() const {
    if (problem_.replicas != 1 || problem_.virtual_ranks != 1)
      input_error("sequence_pipeline: {} replicas of {} virtual ranks; only one of one is written",
                  problem_.replicas, problem_.virtual_ranks);
    if (problem_.tied())
      input_error("sequence_pipeline: tied weights get gradients from two stages; untie them");
    for (int64_t tokens : plan_.segments)
      if (tokens <= 0) input_error("sequence_pipeline: a segment of {} tokens", tokens);
    if (count_ == 0) input_error("sequence_pipeline: there are no segments");
  }

  // A segment's, or a part of one's, share of what a whole sequence has.
  int64_t share(int64_t bytes, int x, int parts) const {
    return (bytes * plan_.segments[static_cast<size_t>(x)] / tokens_ + parts - 1) / parts;
  }

  BufferId make(int rank, const std::string& name, int64_t bytes, Tier tier, bool persistent = false) const {
    return builder_.add_buffer(rank_buffer(rank, name, bytes, tier, persistent));
  }

  Task task(TaskKind kind, LaneKind lane, int rank, int stage, int l, int m, int x) const {
    Task t = rank_task(builder_, kind, lane, rank, stage, m, l);
    t.at.segment = static_cast<int16_t>(x);
    return t;
  }

  // A message from one rank to another; all uses are of whole buffers.
  void transfer(int from, int to, int stage, int m, int x, int64_t bytes, const std::vector<Use>& sent,
                const std::vector<Use>& received) const {
    const bool up = to > from;
    Task send =
        task(TaskKind::kSend, up ? LaneKind::kSendForward : LaneKind::kSendBackward, from, stage, -1, m, x);
    Task receive = task(TaskKind::kReceive, up ? LaneKind::kReceiveForward : LaneKind::kReceiveBackward, to,
                        stage, -1, m, x);
    send.communicator = to;
    receive.communicator = from;
    send.bytes = receive.bytes = bytes;
    send.uses = sent;
    receive.uses = received;
    receive.after.push_back({builder_.append(std::move(send)), 0});
    builder_.append(std::move(receive));
  }

  void make_state(int i, int r) {
    const bool owner = i == r;
    const std::string whose = owner ? "" : fmt::format(" of stage {}", i);
    int64_t temporary = 0;
    for (int l = first(i); l < end(i); ++l) {
      const int64_t bytes = layer(l).parameters * problem_.element_bytes;
      const BufferId w = make(r, fmt::format("weights {}{}", layer(l).name, whose), bytes,
                              owner ? Tier::kLong : Tier::kMedium, owner);
      weights_[{r, l}] = w;
      gradients_[{r, l}] =
          make(r, fmt::format("gradient {}{}", layer(l).name, whose), layer(l).parameters * 4, Tier::kMedium);
      if (!owner)
        transfer(i, r, i, -1, -1, bytes, {{weights_.at({i, l}), Access::kRead, Role::kWeights}},
                 {{w, Access::kWrite, Role::kWeights}});
      temporary = std::max(temporary, layer(l).temporary_bytes);
    }
    temporaries_[{i, r}] = make(r, fmt::format("temporary{}", whose), temporary, Tier::kShort, true);
    if (i == stages() - 1) losses_[r] = make(r, fmt::format("loss{}", whose), 16, Tier::kMedium);
  }

  Access gradient_access(int r, int l) {
    return opened_.insert({r, l}).second ? Access::kWrite : Access::kAccumulate;
  }

  // Keys and values (0), their gradients (1), of one layer and the whole sequence.
  BufferId carry(int r, int l, int which) {
    const auto found = carries_.find({r, l, which});
    if (found != carries_.end()) return found->second;
    int64_t bytes = 0;
    for (const SavedTensor& tensor : layer(l).saved)
      if (tensor.reuse == ReuseClass::kLaterSegment) bytes += tensor.bytes;
    if (bytes == 0) return kNone;
    return carries_[{r, l, which}] =
               make(r,
                    fmt::format("{} of {}", which ? "gradients of keys and values" : "keys and values",
                                layer(l).name),
                    bytes, Tier::kMedium);
  }
  Use carry_use(int r, int l, int which, Access access) {
    const BufferId buffer = carry(r, l, which);
    const bool opens = written_.insert(buffer).second;
    if (access == Access::kAccumulate && opens) access = Access::kWrite;
    return {buffer, access, Role::kCarry, static_cast<int16_t>(which)};
  }
  bool carries(int l) {
    for (const SavedTensor& tensor : layer(l).saved)
      if (tensor.reuse == ReuseClass::kLaterSegment) return true;
    return false;
  }

  // Segment x of stage i, with helpers where the sets say so.
  void run(bool forward, int i, int x, int m) {
    const IndexRange group = sets_[static_cast<size_t>(i)].stages_of(i, x);
    const int parts = group.size();
    for (int r = group.begin; r < group.end; ++r)
      if (r != i) hand_out(forward, i, r, x, m, parts);
    for (int r = group.begin; r < group.end; ++r) compute(forward, i, r, x, m, parts);
    for (int r = group.begin; r < group.end; ++r)
      if (r != i) collect(forward, i, r, x, m, parts);
    const int next = forward ? i + 1 : i - 1;
    if (next < 0 || next == stages()) return;
    const int l = forward ? end(i) - 1 : first(i);
    const int64_t bytes = share(forward ? layer(l).output_bytes : layer(l).gradient_bytes, x, 1);
    auto& table = forward ? activations_ : gradients_in_;
    const BufferId into =
        make(next, fmt::format("{} of segment {} received", forward ? "input" : "gradient", x), bytes,
             forward ? Tier::kMedium : Tier::kShort);
    transfer(i, next, i, m, x, bytes, {{table.at({i, l, x}), Access::kRead, Role::kInput}},
             {{into, Access::kWrite, Role::kOutput}});
    table[{next, l, x}] = into;
  }

  int64_t carry_bytes(int i) const {
    int64_t bytes = 0;
    for (int l = first(i); l < end(i); ++l)
      for (const SavedTensor& tensor : layer(l).saved)
        if (tensor.reuse == ReuseClass::kLaterSegment) bytes += tensor.bytes;
    return bytes;
  }

  // The part of the input; keys and values of the segments before, or what later segments' backwards gave to
  // this one's.
  void hand_out(bool forward, int i, int r, int x, int m, int parts) {
    std::vector<Use> sent, received;
    int64_t bytes = 0;
    const int l = forward ? first(i) - 1 : end(i);
    auto& table = forward ? activations_ : gradients_in_;
    if (l >= 0 && l <= head()) {
      const int64_t part = share(forward ? layer(l).output_bytes : layer(l).gradient_bytes, x, parts);
      bytes += part;
      table[{r, l, x}] = make(r, fmt::format("part of segment {} of stage {}", x, i), part,
                              forward ? Tier::kMedium : Tier::kShort);
      sent.push_back({table.at({i, l, x}), Access::kRead, Role::kInput});
      received.push_back({table.at({r, l, x}), Access::kWrite, Role::kOutput});
    }
    if (forward && x > 0 && carry_bytes(i) > 0) {
      for (int s = 0; s < x; ++s) bytes += share(carry_bytes(i), s, 1);
      for (int k = first(i); k < end(i); ++k) {
        if (!carries(k)) continue;
        sent.push_back(carry_use(i, k, 0, Access::kRead));
        received.push_back(carry_use(r, k, 0, Access::kAccumulate));
      }
    }
    if (!forward && x + 1 < count_) {
      bytes += share(carry_bytes(i), x, parts);
      for (int k = first(i); k < end(i); ++k) {
        if (!carries(k)) continue;
        sent.push_back(carry_use(i, k, 1, Access::kRead));
        received.push_back(carry_use(r, k, 1, Access::kWrite));
      }
    }
    if (!sent.empty()) transfer(i, r, i, m, x, bytes, sent, received);
  }

  // The part of the output; the segment's keys and values, or what it adds to the gradients of earlier ones.
  void collect(bool forward, int i, int r, int x, int m, int parts) {
    std::vector<Use> sent, received;
    int64_t bytes = 0;
    const int l = forward ? end(i) - 1 : first(i);
    auto& table = forward ? activations_ : gradients_in_;
    if (const auto found = table.find({r, l, x}); found != table.end()) {
      bytes += share(forward ? layer(l).output_bytes : layer(l).gradient_bytes, x, parts);
      sent.push_back({found->second, Access::kRead, Role::kInput});
      received.push_back({table.at({i, l, x}), Access::kAccumulate, Role::kOutput});
    }
    for (int k = first(i); k < end(i); ++k) {
      if (!carries(k)) continue;
      sent.push_back(carry_use(r, k, forward ? 0 : 1, Access::kRead));
      received.push_back(carry_use(i, k, forward ? 0 : 1, Access::kAccumulate));
      if (!forward) written_.erase(carry(r, k, 1));  // handed over: the next segment's begin at nothing
    }
    if (forward) bytes += share(carry_bytes(i), x, parts);
    for (int s = 0; s < x && !forward; ++s) bytes += share(carry_bytes(i), s, 1);
    if (!sent.empty()) transfer(r, i, i, m, x, bytes, sent, received);
  }

  void compute(bool forward, int i, int r, int x, int m, int parts) {
    for (int k = 0; k < end(i) - first(i); ++k) {
      const int l = forward ? first(i) + k : end(i) - 1 - k;
      Task t = task(forward ? TaskKind::kForward : TaskKind::kBackward, LaneKind::kCompute, r, i, l, m, x);
      t.uses = {{weights_.at({r, l}), Access::kRead, Role::kWeights},
                {temporaries_.at({i, r}), Access::kWrite, Role::kTemporary}};
      if (l > 0) t.uses.push_back({activations_.at({r, l - 1, x}), Access::kRead, Role::kInput});
      if (!forward && l < head())
        t.uses.push_back({gradients_in_.at({r, l + 1, x}), Access::kRead, Role::kInput, 1});
      use_saved(t, forward, r, l, x, parts);
      if (carries(l)) {
        t.uses.push_back(carry_use(r, l, 0, forward ? Access::kAccumulate : Access::kRead));
        if (!forward) t.uses.push_back(carry_use(r, l, 1, Access::kAccumulate));
      }
      if (!forward || l == head())
        t.uses.push_back({gradients_.at({r, l}), gradient_access(r, l), Role::kGradient});
      if (forward && l == head()) {
        const bool opens = written_.insert(losses_.at(r)).second;
        t.uses.push_back({losses_.at(r), opens ? Access::kWrite : Access::kAccumulate, Role::kLoss});
      } else if (forward || l > 0) {
        auto& table = forward ? activations_ : gradients_in_;
        const int64_t bytes = forward ? layer(l).output_bytes : layer(l).gradient_bytes;
        // The owner of a multiplexed segment holds the whole of what its helpers send back.
        const bool whole = r == i && l == (forward ? end(i) - 1 : first(i));
        table[{r, l, x}] = make(
            r, fmt::format("{} {} segment {}", forward ? "output of" : "gradient into", layer(l).name, x),
            share(bytes, x, whole ? 1 : parts), forward ? Tier::kMedium : Tier::kShort);
        t.uses.push_back({table.at({r, l, x}), Access::kWrite, Role::kOutput});
      }
      builder_.append(std::move(t));
    }
  }

  void use_saved(Task& t, bool forward, int r, int l, int x, int parts) {
    int16_t index = 0;
    for (const SavedTensor& tensor : layer(l).saved) {
      if (tensor.reuse == ReuseClass::kBackward) {
        auto& saved = saved_[{r, l, x}];
        if (forward)
          saved.push_back(make(r, fmt::format("{} of {} segment {}", tensor.name, layer(l).name, x),
                               share(tensor.bytes, x, parts), Tier::kMedium));
        t.uses.push_back({saved.at(static_cast<size_t>(index)), forward ? Access::kWrite : Access::kRead,
                          Role::kSaved, index});
        ++index;
      }
    }
  }

  void fold_helpers(int i) {
    for (int r = 0; r < stages(); ++r)
      for (int l = first(i); r != i && l < end(i); ++l) {
        const auto helper = gradients_.find({r, l});
        if (helper == gradients_.end()) continue;
        const BufferId into = make(i, fmt::format("gradient {} from rank {}", layer(l).name, r),
                                   layer(l).parameters * 4, Tier::kShort);
        transfer(r, i, i, -1, -1, layer(l).parameters * 4, {{helper->second, Access::kRead, Role::kGradient}},
                 {{into, Access::kWrite, Role::kGradient}});
        Task fold = task(TaskKind::kGradFold, LaneKind::kCompute, i, i, l, -1, -1);
        fold.uses = {{gradients_.at({i, l}), Access::kAccumulate, Role::kGradient},
                     {into, Access::kRead, Role::kInput}};
        builder_.append(std::move(fold));
      }
  }

  StepGraphBuilder& builder_;
  const Problem& problem_;
  const SequencePipeline& plan_;
  const int count_;
  const int64_t tokens_;
  std::vector<BoundarySets> sets_;                               // [stage]
  std::map<std::pair<int, int>, BufferId> weights_, gradients_;  // (rank, layer)
  std::map<StageRank, BufferId> temporaries_;
  std::map<int, BufferId> losses_;     // by rank that computes the head
  std::map<Place, BufferId> carries_;  // (rank, layer, which)
  std::map<Place, BufferId> activations_, gradients_in_;
  std::map<Place, std::vector<BufferId>> saved_;
  std::set<std::pair<int, int>> opened_;  // gradients written to in this step
  std::set<BufferId> written_;
};

}  // namespace

void sequence_pipeline(StepGraphBuilder& builder, const Problem& problem, const SequencePipeline& plan) {
  SequenceWriter(builder, problem, plan).write();
  builder.record_pass(plan.multiplex ? "sequence_pipeline multiplexed" : "sequence_pipeline");
}

}  // namespace trainer
