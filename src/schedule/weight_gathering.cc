#include <fmt/format.h>

#include <map>
#include <vector>

#include "schedule/rank_writer.h"
#include "schedule/shards.h"
#include "schedule/state_tasks.h"

namespace trainer {
namespace {

// Writes the gathers of one rank.
class GatherWriter : RankWriter {
 public:
  GatherWriter(StepGraphBuilder& builder, const Problem& problem, int rank)
      : RankWriter(builder, rank, problem.stage_of(rank)), problem_(problem) {}

  void write() {
    const auto sequence = builder_.sequence();
    TaskId before = kNone;  // first task of the use before the current one
    TaskId begin = kNone;   // of the current one
    int layer = kNone, micro_batch = kNone;
    for (TaskId id : sequence) {
      if (builder_.task(id).at.rank != rank_) continue;
      const Coordinates at = builder_.task(id).at;
      const TaskKind kind = builder_.task(id).kind;
      if (kind != TaskKind::kForward && kind != TaskKind::kRecover && kind != TaskKind::kBackward) continue;
      // Neighbours on one layer, as a Recover and its Backward, share a copy.
      if (at.layer_begin != layer || at.micro_batch != micro_batch) {
        gathered_.clear();
        before = begin == kNone ? id : begin;
        begin = id;
        layer = at.layer_begin;
        micro_batch = at.micro_batch;
      }
      for (size_t u = 0; u < builder_.task(id).uses.size(); ++u) {
        const Use use = builder_.task(id).uses[u];
        if (use.role == Role::kWeights) replace(id, u, layer, before);
        if (use.role == Role::kSharedWeights) replace(id, u, 0, before);
      }
    }
    for (const auto& [shard, owner] : shards_)
      builder_.buffer(shard).bytes = shard_range(problem_.layers[static_cast<size_t>(owner)],
                                                 problem_.replicas, problem_.replica_of(rank_))
                                         .count *
                                     problem_.element_bytes;
  }

 private:
  // Use `u` of the task reads a copy of the layer's weights, gathered before task `position`.
  void replace(TaskId id, size_t u, int owner, TaskId position) {
    const BufferId shard = builder_.task(id).uses[u].buffer;
    shards_[shard] = owner;
    const auto [copy, fresh] = gathered_.try_emplace(shard, kNone);
    if (fresh) {
      const LayerCatalogue& layer = problem_.layers[static_cast<size_t>(owner)];
      copy->second = make(fmt::format("weights {} gathered ({})", layer.name, count_++),
                          layer.parameters * problem_.element_bytes, Tier::kShort);
      Task t =
          task(TaskKind::kPrefetchWeights, LaneKind::kCollective, builder_.task(id).at.micro_batch, owner);
      t.communicator = kDataParallel;
      t.bytes = layer.parameters * problem_.element_bytes;
      t.uses = {{shard, Access::kRead, Role::kMaster}, {copy->second, Access::kWrite, Role::kWeights}};
      builder_.insert_before(position, std::move(t));
    }
    builder_.task(id).uses[u].buffer = copy->second;
  }

  const Problem& problem_;
  std::map<BufferId, BufferId> gathered_;  // of the current use: shard -> copy
  std::map<BufferId, int> shards_;         // -> layer
  int count_ = 0;
};

}  // namespace

void gather_weights(StepGraphBuilder& builder, const Problem& problem) {
  if (problem.sharding() < 3) return;
  for (int rank : problem.ranks_to_build()) GatherWriter(builder, problem, rank).write();
}

}  // namespace trainer
