#include "schedule/check.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "base/hash.h"
#include "base/units.h"
#include "schedule/dispatcher.h"
#include "schedule/memory.h"

namespace trainer {
namespace {

constexpr int kStepsWalked = 3;

class Checker {
 public:
  explicit Checker(const StepGraph& graph) : graph_(graph) {}

  std::vector<Diagnostic> run(int64_t memory_budget) {
    reads_have_writers();
    transfers_match();
    collectives_agree();
    memory_fits(memory_budget);
    if (problems_.empty()) walk();
    return std::move(problems_);
  }

 private:
  template <class... Args>
  void problem(fmt::format_string<Args...> format, Args&&... args) {
    problems_.push_back({fmt::format(format, std::forward<Args>(args)...)});
  }

  const Task& task(TaskId id) const { return graph_.tasks[static_cast<size_t>(id)]; }

  std::set<int> ranks() const {
    std::set<int> all;
    for (const Task& t : graph_.tasks) all.insert(t.at.rank);
    return all;
  }

  void reads_have_writers() {
    std::vector<bool> written(graph_.buffers.size());
    for (TaskId id : graph_.sequence)
      for (const Use& use : task(id).uses) {
        const auto b = static_cast<size_t>(use.buffer);
        const Buffer& buffer = graph_.buffers[b];
        if (use.access != Access::kWrite && !buffer.persistent && !written[b])
          problem("{} reads '{}', which nothing before it writes", graph_.describe(id), buffer.name);
        if (use.access != Access::kRead) written[b] = true;
      }
  }

  // (rank, peer, lane kind) -> transfers in order.
  void transfers_match() {
    std::map<std::tuple<int, int, LaneKind>, std::vector<TaskId>> transfers;
    for (const Lane& lane : graph_.lanes)
      for (TaskId id : lane.program)
        if (task(id).kind == TaskKind::kSend || task(id).kind == TaskKind::kReceive)
          transfers[{lane.rank, task(id).communicator, lane.kind}].push_back(id);
    const auto all = ranks();
    const auto opposite = [](LaneKind kind) {
      switch (kind) {
        case LaneKind::kSendForward:
          return LaneKind::kReceiveForward;
        case LaneKind::kReceiveForward:
          return LaneKind::kSendForward;
        case LaneKind::kSendBackward:
          return LaneKind::kReceiveBackward;
        default:
          return LaneKind::kSendBackward;
      }
    };
    for (const auto& [key, mine] : transfers) {
      const auto& [rank, peer, kind] = key;
      if (!all.count(peer)) continue;
      const auto other = transfers.find({peer, rank, opposite(kind)});
      const size_t theirs = other == transfers.end() ? 0 : other->second.size();
      if (theirs != mine.size())
        problem("{} has {} transfers on {} with rank {}, which has {}", graph_.describe(mine.front()),
                mine.size(), name_of(kind), peer, theirs);
      for (size_t i = 0; i < std::min(theirs, mine.size()); ++i) {
        const TaskId a = mine[i], b = other->second[i];
        if (task(a).at.micro_batch != task(b).at.micro_batch || task(a).bytes != task(b).bytes)
          problem("{} ({} bytes) meets {} ({} bytes)", graph_.describe(a), task(a).bytes, graph_.describe(b),
                  task(b).bytes);
      }
    }
  }

  void collectives_agree() {
    // Ranks of one group are those that share a stage (data parallel), a replica (tied embedding), or the
    // world.
    const int replicas = count_replicas();
    for (TaskId id : graph_.sequence) {
      const Task& t = task(id);
      if (!is_collective(t)) continue;
      const int group = t.communicator == kDataParallel    ? t.at.stage
                        : t.communicator == kTiedEmbedding ? t.at.rank % replicas
                                                           : 0;
      groups_[{t.communicator, group}][t.at.rank].push_back(id);
    }
    for (const auto& [key, members] : groups_) {
      const auto& reference = members.begin()->second;
      for (const auto& [rank, order] : members) {
        if (order.size() != reference.size()) {
          problem("rank {} takes part in {} collectives where rank {} takes part in {}", rank, order.size(),
                  members.begin()->first, reference.size());
          continue;
        }
        for (size_t i = 0; i < order.size(); ++i)
          if (task(order[i]).kind != task(reference[i]).kind ||
              task(order[i]).bytes != task(reference[i]).bytes ||
              task(order[i]).at.layer_begin != task(reference[i]).at.layer_begin)
            problem("{} meets {} in one collective", graph_.describe(order[i]),
                    graph_.describe(reference[i]));
      }
    }
  }

  bool is_collective(const Task& t) const {
    return graph_.lanes[static_cast<size_t>(t.lane)].kind == LaneKind::kCollective;
  }

  int count_replicas() const {
    std::map<int, std::set<int>> by_stage;
    for (const Task& t : graph_.tasks) by_stage[t.at.stage].insert(t.at.rank);
    size_t most = 1;
    for (const auto& [stage, members] : by_stage) most = std::max(most, members.size());
    return static_cast<int>(most);
  }

  void memory_fits(int64_t budget) {
    if (budget <= 0) return;
    for (int rank : ranks()) {
      const TierBytes tiers = arena_bytes(graph_, rank);
      const int64_t total = tiers[0] + tiers[1] + tiers[2];
      if (total > budget)
        problem(
            "rank {} needs {:.2f} GiB (long {:.2f}, medium {:.2f}, short {:.2f}), the memory budget is "
            "{:.2f} GiB",
            rank, total / kGiB, tiers[0] / kGiB, tiers[1] / kGiB, tiers[2] / kGiB, budget / kGiB);
    }
  }

  // The collectives of a walk. Each ends on all ranks of its group together, once the last has started it.
  class Meetings {
   public:
    explicit Meetings(const Checker& checker) : checker_(checker), of_(checker.graph_.tasks.size()) {
      for (const auto& [key, members] : checker.groups_) {
        for (const auto& [rank, order] : members)
          for (size_t i = 0; i < order.size(); ++i)
            of_[static_cast<size_t>(order[i])] = {static_cast<int>(sizes_.size()), static_cast<int>(i)};
        sizes_.push_back(members.size());
      }
    }

    void start(Dispatcher& dispatcher, Instance instance) {
      const auto [group, index] = of_[static_cast<size_t>(instance.task)];
      auto& present = under_way_[{group, index, instance.step}];
      present.push_back(instance);
      if (present.size() < sizes_[static_cast<size_t>(group)]) return;
      for (Instance each : present) dispatcher.complete(each);
      under_way_.erase({group, index, instance.step});
    }

    std::string blocked() const {
      std::string text;
      for (const auto& [key, present] : under_way_)
        text += fmt::format("\n  {} of step {}, on {} of {} ranks, waits for the others",
                            checker_.graph_.describe(present.front().task), present.front().step,
                            present.size(), sizes_[static_cast<size_t>(std::get<0>(key))]);
      return text;
    }

   private:
    const Checker& checker_;
    std::vector<std::pair<int, int>> of_;  // by task: its group, which one of the group's collectives it is
    std::vector<size_t> sizes_;            // of groups, in ranks
    std::map<std::tuple<int, int, int>, std::vector<Instance>> under_way_;  // (group, which one, step)
  };

  // A send ends only once its receive is posted: no transfer counts on buffers in between. Nor does a
  // collective end before all of its ranks have come to it.
  void walk() {
    std::map<TaskId, TaskId> receive_of;
    for (size_t id = 0; id < graph_.tasks.size(); ++id)
      if (graph_.tasks[id].kind == TaskKind::kReceive)
        for (const Edge& edge : graph_.tasks[id].after)
          if (task(edge.producer).kind == TaskKind::kSend &&
              task(edge.producer).at.rank != graph_.tasks[id].at.rank)
            receive_of[edge.producer] = static_cast<TaskId>(id);
    Dispatcher dispatcher(graph_, kStepsWalked);
    Meetings meetings(*this);
    std::vector<Instance> sending;
    const auto finish_sends = [&] {
      return std::erase_if(sending, [&](Instance send) {
        const auto receive = receive_of.find(send.task);
        if (receive != receive_of.end() &&
            !dispatcher.waits_only_for({receive->second, send.step}, send.task))
          return false;
        dispatcher.complete(send);
        return true;
      });
    };
    for (bool moved = true; moved && !dispatcher.finished();) {
      moved = finish_sends() > 0;
      for (size_t lane = 0; lane < graph_.lanes.size(); ++lane)
        while (const auto instance = dispatcher.next(static_cast<LaneId>(lane))) {
          moved = true;
          if (task(instance->task).kind == TaskKind::kSend)
            sending.push_back(*instance);
          else if (is_collective(task(instance->task)))
            meetings.start(dispatcher, *instance);
          else
            dispatcher.complete(*instance);
        }
    }
    if (dispatcher.finished()) return;
    std::string text = dispatcher.blocked() + meetings.blocked();
    for (Instance send : sending)
      text += fmt::format("\n  {} has no posted receive", graph_.describe(send.task));
    problem("the program cannot finish:{}", text);
  }

  const StepGraph& graph_;
  // (communicator, group) -> rank -> its collectives in order.
  std::map<std::pair<int, int>, std::map<int, std::vector<TaskId>>> groups_;
  std::vector<Diagnostic> problems_;
};

}  // namespace

std::vector<Diagnostic> check(const StepGraph& graph, int64_t memory_budget) {
  return Checker(graph).run(memory_budget);
}

uint64_t transfer_digest(const StepGraph& graph, int rank, int peer, bool sends) {
  Hasher h;
  for (const LaneKind kind : sends ? std::vector{LaneKind::kSendForward, LaneKind::kSendBackward}
                                   : std::vector{LaneKind::kReceiveForward, LaneKind::kReceiveBackward})
    for (const Lane& lane : graph.lanes) {
      if (lane.rank != rank || lane.kind != kind) continue;
      const bool forward = kind == LaneKind::kSendForward || kind == LaneKind::kReceiveForward;
      for (TaskId id : lane.program) {
        const Task& t = graph.tasks[static_cast<size_t>(id)];
        if (t.communicator == peer) h.add(t.at.micro_batch).add(t.bytes).add(forward);
      }
    }
  return h.value();
}

uint64_t collective_digest(const StepGraph& graph, int rank, int communicator) {
  Hasher h;
  for (TaskId id : graph.sequence) {
    const Task& t = graph.tasks[static_cast<size_t>(id)];
    const bool collective = graph.lanes[static_cast<size_t>(t.lane)].kind == LaneKind::kCollective;
    if (collective && t.at.rank == rank && t.communicator == communicator)
      h.add(t.kind).add(t.at.layer_begin).add(t.bytes);
  }
  return h.value();
}

}  // namespace trainer
