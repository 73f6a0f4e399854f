// What each pass moves and which edges it takes away, over grids of small plans.
#include "schedule/passes.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "schedule/check.h"
#include "schedule/problems.h"
#include "schedule/shards.h"
#include "schedule/tagged_arenas.h"
#include "support/thinning.h"

namespace trainer {
namespace {

using testing::small_problem;

const std::vector<std::vector<std::string>> kLists = {
    {}, {"layer_state_pipeline"}, {"update_prefetch"}, {"forward_side_recovery"}, pass_names()};

std::string describe(const Problem& p) {
  return fmt::format("P {} D {} zero {}{}{}{}{} passes {}", p.stages, p.replicas, p.zero_stage,
                     p.shard_gradients ? " shards" : "", p.tied() ? " tied" : "",
                     p.updates_wait_for_norm ? "" : " chained", p.kept.empty() ? "" : " recovers",
                     fmt::join(p.passes, ","));
}

void for_each_plan(const std::function<void(const Problem&)>& body) {
  testing::Thinning thinning;
  for (int stages : {1, 2, 4})
    for (int replicas : {1, 2, 4})
      for (int zero = 0; zero <= 3; ++zero)
        for (bool shards : {false, true})
          for (bool tied : {false, true})
            for (bool waits : {false, true})
              for (const auto& passes : kLists) {
                if (shards && (zero < 2 || replicas == 1)) continue;
                if (zero > 0 && replicas == 1) continue;
                if (thinning.skips()) continue;
                Problem p = small_problem(4, stages, replicas, 5, tied, zero % 2 ? 2 : 4);
                p.kept = choose_kept(p, ActivationPolicy::kCheckpoint, false, 0);
                p.recovery_buffers = 2;
                p.zero_stage = zero;
                p.shard_gradients = shards;
                p.updates_wait_for_norm = waits;
                p.passes = passes;
                SCOPED_TRACE(describe(p));
                body(p);
              }
}

const Task& task_of(const StepGraph& graph, TaskId id) { return graph.tasks[static_cast<size_t>(id)]; }

// All that must be complete before `id` within its step.
std::set<TaskId> ancestors(const StepGraph& graph, TaskId id) {
  std::set<TaskId> seen;
  std::vector<TaskId> open{id};
  while (!open.empty()) {
    const TaskId next = open.back();
    open.pop_back();
    for (const Edge& e : task_of(graph, next).after)
      if (e.distance == 0 && seen.insert(e.producer).second) open.push_back(e.producer);
  }
  return seen;
}

std::vector<TaskId> tasks_where(const StepGraph& graph, const std::function<bool(const Task&)>& wanted) {
  std::vector<TaskId> found;
  for (TaskId id : graph.sequence)
    if (wanted(task_of(graph, id))) found.push_back(id);
  return found;
}

TaskId last_backward(const StepGraph& graph, int rank) {
  return tasks_where(graph, [&](const Task& t) { return t.kind == TaskKind::kBackward && t.at.rank == rank; })
      .back();
}

Problem with_passes(Problem p, std::vector<std::string> passes) {
  p.passes = std::move(passes);
  return p;
}

// Collectives are compared task by task, by who takes part according to the problem.
TEST(Passes, EveryPlanIsValidAndRanksOfACommunicatorMeetInOneOrder) {
  for_each_plan([](const Problem& p) {
    const StepGraph graph = build_step_graph(p);
    for (const Diagnostic& d : check(graph)) ADD_FAILURE() << d.message;
    using Meeting = std::tuple<TaskKind, int, int, int64_t>;
    std::map<std::pair<int, int>, std::map<int, std::vector<Meeting>>> groups;
    for (const Lane& lane : graph.lanes) {
      if (lane.kind != LaneKind::kCollective) continue;
      EXPECT_EQ(lane.order, LaneOrder::kFifo);
      for (TaskId id : lane.program) {
        const Task& t = task_of(graph, id);
        const int group = t.communicator == kDataParallel    ? p.stage_of(lane.rank)
                          : t.communicator == kTiedEmbedding ? p.replica_of(lane.rank)
                                                             : 0;
        groups[{t.communicator, group}][lane.rank].emplace_back(t.kind, t.at.layer_begin, t.at.micro_batch,
                                                                t.bytes);
      }
    }
    for (const auto& [key, members] : groups) {
      const size_t size = key.first == kDataParallel    ? static_cast<size_t>(p.replicas)
                          : key.first == kTiedEmbedding ? 2
                                                        : static_cast<size_t>(p.world_size());
      EXPECT_EQ(members.size(), size);
      for (const auto& [rank, meetings] : members) EXPECT_EQ(meetings, members.begin()->second);
    }
  });
}

TEST(Passes, AnyLegalOrderKeepsContentUntilItsLastReader) {
  uint64_t seed = 0;
  for_each_plan([&](const Problem& p) {
    for (int rank : {0, p.world_size() - 1}) {
      Problem one = p;
      one.ranks = {rank};
      EXPECT_EQ(testing::overwritten_lines(build_step_graph(one), 3, ++seed), 0);
    }
  });
}

// With bookkeeping of its own: what was started and what is done.
TEST(Passes, BackgroundWorkNeverPassesAMainPathTaskThatCouldStart) {
  Problem p = small_problem(4, 2, 2, 5);
  p.kept = choose_kept(p, ActivationPolicy::kCheckpoint, false, 0);
  p.zero_stage = 2;
  for (bool shards : {false, true})
    for (int buffers : {0, 1}) {
      p.shard_gradients = shards;
      p.recovery_buffers = buffers;
      const StepGraph graph = build_step_graph(with_passes(p, pass_names()));
      int background = 0, absorbed = 0;
      for (uint64_t seed = 0; seed < 10; ++seed) {
        constexpr int kSteps = 3;
        std::set<std::pair<TaskId, int>> started, done;
        const auto waits_for = [&](TaskId id, int step) {
          std::vector<Instance> missing;
          for (const Edge& e : task_of(graph, id).after)
            if (e.distance <= step && !done.count({e.producer, step - e.distance}))
              missing.push_back({e.producer, step - e.distance});
          return missing;
        };
        const auto main_path_of = [&](LaneId lane) -> std::optional<Instance> {
          for (int step = 0; step < kSteps; ++step)
            for (TaskId id : graph.lanes[static_cast<size_t>(lane)].program)
              if (is_main_path(task_of(graph, id).kind) && !started.count({id, step}))
                return Instance{id, step};
          return std::nullopt;
        };
        const auto start = [&](Instance i) {
          const Task& task = task_of(graph, i.task);
          if (graph.lanes[static_cast<size_t>(task.lane)].kind == LaneKind::kCompute &&
              !is_main_path(task.kind)) {
            ++background;
            if (const auto next = main_path_of(task.lane)) {
              const auto missing = waits_for(next->task, next->step);
              EXPECT_FALSE(missing.empty())
                  << graph.describe(i.task) << " before " << graph.describe(next->task);
              if (missing.size() == 1 && task_of(graph, missing[0].task).absorber == next->task) {
                EXPECT_TRUE(started.count({missing[0].task, missing[0].step}) ||
                            !waits_for(missing[0].task, missing[0].step).empty())
                    << graph.describe(next->task) << " could have recovered for itself";
              }
            }
          }
          for (TaskId id : {i.absorbed, i.task})
            if (id != kNone) {
              EXPECT_TRUE(started.insert({id, i.step}).second);
            }
          absorbed += i.absorbed != kNone;
        };
        testing::run_in_random_order(graph, kSteps, seed, start, [&](Instance i) {
          for (TaskId id : {i.absorbed, i.task})
            if (id != kNone) done.insert({id, i.step});
        });
        EXPECT_EQ(done.size(), graph.tasks.size() * kSteps);
      }
      EXPECT_GT(background, 100);
      EXPECT_GT(absorbed, 0);
    }
}

TEST(LayerStatePipeline, SumsStandBehindTheLastUseOfTheirGradient) {
  for (int stages : {1, 2, 4})
    for (int zero : {0, 1, 2, 3}) {
      Problem p = small_problem(8, stages, 2, 4);
      p.zero_stage = zero;
      SCOPED_TRACE(describe(p));
      const StepGraph batch = build_step_graph(p);
      const StepGraph graph = build_step_graph(with_passes(p, {"layer_state_pipeline"}));
      EXPECT_EQ(graph.tasks.size(), batch.tasks.size());
      for (const StepGraph* g : {&batch, &graph})
        for (TaskId id : tasks_where(*g, [](const Task& t) { return t.kind == TaskKind::kGradSync; })) {
          const Task& sync = task_of(*g, id);
          const TaskId last = last_backward(*g, sync.at.rank);
          const auto before = ancestors(*g, id);
          // The lowest layer's gradient is complete with the last backward; the head's part of a tied one is
          // not.
          const auto& uses = task_of(*g, last).uses;
          const bool lowest = std::any_of(uses.begin(), uses.end(),
                                          [&](const Use& use) { return use.buffer == sync.uses[0].buffer; });
          EXPECT_EQ(before.count(last), g == &batch || lowest) << g->describe(id);
          if (g == &batch) continue;
          // It waits for nothing of the layers below it.
          for (TaskId other : before)
            if (task_of(*g, other).kind == TaskKind::kBackward &&
                task_of(*g, other).at.rank == sync.at.rank &&
                task_of(*g, other).at.micro_batch == p.micro_batches - 1 &&
                sync.communicator == kDataParallel && sync.at.layer_begin > 0) {
              EXPECT_GE(task_of(*g, other).at.layer_begin, sync.at.layer_begin) << g->describe(id);
            }
        }
    }
}

TEST(LayerStatePipeline, WithoutANormUpdatesStartUnderTheBackwardsOfLowerLayers) {
  for (int zero : {0, 1, 2, 3}) {
    Problem p = small_problem(8, 2, 2, 4, false, 2);
    p.zero_stage = zero;
    p.updates_wait_for_norm = false;
    for (bool pipelined : {false, true}) {
      const StepGraph graph = build_step_graph(with_passes(
          p, pipelined ? std::vector<std::string>{"layer_state_pipeline"} : std::vector<std::string>{}));
      int updates = 0;
      for (TaskId id : tasks_where(graph, [](const Task& t) {
             return t.kind == TaskKind::kUpdateShard ||
                    (t.kind == TaskKind::kPrefetchWeights && t.at.micro_batch < 0);
           })) {
        const Task& t = task_of(graph, id);
        const bool lowest = t.at.layer_begin == p.first_layer[static_cast<size_t>(t.at.stage)];
        EXPECT_EQ(ancestors(graph, id).count(last_backward(graph, t.at.rank)), !pipelined || lowest)
            << graph.describe(id);
        ++updates;
      }
      EXPECT_GE(updates, 4 * 5 * 2);
    }
  }
}

TEST(LayerStatePipeline, WithANormNoUpdateStartsBeforeAllGradientsAreKnown) {
  const Problem p = with_passes(small_problem(8, 2, 2, 4), pass_names());
  const StepGraph graph = build_step_graph(p);
  for (TaskId id : tasks_where(graph, [](const Task& t) { return t.kind == TaskKind::kUpdateShard; }))
    EXPECT_TRUE(ancestors(graph, id).count(last_backward(graph, task_of(graph, id).at.rank)));
}

TEST(UpdatePrefetch, TheNextForwardWaitsForItsOwnWeightsAlone) {
  for (int zero : {0, 1, 2})
    for (bool prefetch : {false, true}) {
      Problem p = small_problem(8, 2, 2, 4, true, 2);
      p.zero_stage = zero;
      const StepGraph graph = build_step_graph(with_passes(
          p, prefetch ? std::vector<std::string>{"update_prefetch"} : std::vector<std::string>{}));
      for (int rank = 0; rank < p.world_size(); ++rank) {
        const auto forwards = tasks_where(graph, [&](const Task& t) {
          return t.kind == TaskKind::kForward && t.at.rank == rank && t.at.micro_batch == 0;
        });
        std::set<int> updated_before_first;
        for (TaskId id : forwards) {
          std::set<int> own;
          for (const Edge& e : task_of(graph, id).after)
            if (e.distance == 1 && task_of(graph, e.producer).kind == TaskKind::kPrefetchWeights)
              own.insert(task_of(graph, e.producer).at.layer_begin);
          if (id == forwards.front()) updated_before_first = own;
          // The head reads the tied table too.
          EXPECT_TRUE(own.count(task_of(graph, id).at.layer_begin)) << graph.describe(id);
          for (int layer : own) {
            const int reader = task_of(graph, id).at.layer_begin;
            const bool needed = layer == reader || (layer == 0 && reader == p.layer_count() - 1);
            EXPECT_TRUE(needed || !prefetch) << graph.describe(id) << " waits for layer " << layer;
          }
        }
        if (!prefetch) {
          EXPECT_GE(updated_before_first.size(), forwards.size());
        }
      }
    }
}

TEST(UpdatePrefetch, UpdatesStandInTheOrderOfTheNextUse) {
  const StepGraph graph = build_step_graph(with_passes(small_problem(8, 2, 1, 4), {"update_prefetch"}));
  std::map<int, std::vector<int>> layers;
  for (TaskId id : tasks_where(graph, [](const Task& t) { return t.kind == TaskKind::kUpdateShard; }))
    layers[task_of(graph, id).at.rank].push_back(task_of(graph, id).at.layer_begin);
  EXPECT_TRUE(std::is_sorted(layers[0].begin(), layers[0].end()));
  // The copy of the tied table, which the head reads, comes last.
  EXPECT_EQ(layers[1].back(), 0);
  EXPECT_TRUE(std::is_sorted(layers[1].begin(), layers[1].end() - 1));
}

Problem recovering(int stages, int buffers, std::vector<std::string> passes) {
  Problem p = small_problem(8, stages, 1, 6);
  p.kept = choose_kept(p, ActivationPolicy::kCheckpoint, false, 0);
  p.recovery_buffers = buffers;
  p.passes = std::move(passes);
  return p;
}

// Blocks recovered and not yet used, at most, by rank.
std::map<int, int> most_recovered(const StepGraph& graph) {
  std::map<int, std::set<std::pair<int, int>>> held;
  std::map<int, int> most;
  for (TaskId id : graph.sequence) {
    const Task& t = task_of(graph, id);
    const std::pair key{int{t.at.layer_begin}, int{t.at.micro_batch}};
    if (t.kind == TaskKind::kRecover) held[t.at.rank].insert(key);
    most[t.at.rank] = std::max(most[t.at.rank], static_cast<int>(held[t.at.rank].size()));
    if (t.kind == TaskKind::kBackward) held[t.at.rank].erase(key);
  }
  return most;
}

TEST(ForwardSideRecovery, NeverHoldsMoreThanItsBuffers) {
  for (int stages : {1, 2, 4}) {
    EXPECT_EQ(most_recovered(build_step_graph(recovering(stages, 3, {})))[0], 1) << "at backward time";
    const auto short_bytes = [](const StepGraph& graph) {
      return arena_bytes(graph, 0)[static_cast<size_t>(Tier::kShort)];
    };
    Problem keeps_all = recovering(stages, 0, {});
    keeps_all.kept.clear();
    const int64_t without = short_bytes(build_step_graph(keeps_all));
    for (int buffers : {1, 2, 3, 5}) {
      const StepGraph graph = build_step_graph(recovering(stages, buffers, {"forward_side_recovery"}));
      for (const auto& [rank, most] : most_recovered(graph)) EXPECT_LE(most, buffers) << "rank " << rank;
      if (stages > 1) {
        EXPECT_EQ(most_recovered(graph)[0], buffers) << "the first stage has gaps to use them all";
      }
      // A block's saved tensors are 704 bytes; 512 that lie between two of them may be of no use.
      EXPECT_LE(short_bytes(graph), without + buffers * 704 + 512);
    }
  }
}

TEST(ForwardSideRecovery, ARecoveryWaitsForItsForwardAndABufferButForNoGradient) {
  const Problem late = recovering(2, 2, {"transfer_priority"}), early = recovering(2, 2, pass_names());
  for (const Problem* p : {&late, &early}) {
    const StepGraph graph = build_step_graph(*p);
    int recoveries = 0;
    for (TaskId id : tasks_where(graph, [](const Task& t) { return t.kind == TaskKind::kRecover; })) {
      const Task& t = task_of(graph, id);
      ++recoveries;
      EXPECT_EQ(graph.find(t, Role::kInput, 1) == nullptr, p == &early);
      EXPECT_NE(graph.find(t, Role::kInput, 0), nullptr);
      ASSERT_NE(t.absorber, kNone);
      EXPECT_EQ(task_of(graph, t.absorber).kind, TaskKind::kBackward);
      EXPECT_EQ(task_of(graph, t.absorber).at.layer_begin, t.at.layer_begin);
      EXPECT_EQ(task_of(graph, t.absorber).at.micro_batch, t.at.micro_batch);
      // Its own forward made what it reads, but for what came from the stage before.
      bool forward = false;
      for (TaskId other : ancestors(graph, id)) {
        const Task& o = task_of(graph, other);
        const bool above = o.kind == TaskKind::kBackward && o.at.rank == t.at.rank &&
                           o.at.micro_batch == t.at.micro_batch && o.at.layer_begin > t.at.layer_begin;
        if (p == &early && above) {
          // Only for its buffer: the block recovered two before it.
          EXPECT_GE(o.at.layer_begin, t.at.layer_begin + 2) << graph.describe(id);
        }
        forward = forward || o.kind == TaskKind::kForward || o.kind == TaskKind::kReceive;
      }
      EXPECT_TRUE(forward);
    }
    EXPECT_EQ(recoveries, 8 * 6);
  }
}

TEST(TransferPriority, CollectiveLanesYieldAndNoOthers) {
  for (bool on : {false, true}) {
    const StepGraph graph = build_step_graph(
        with_passes(small_problem(4, 2, 2, 4),
                    on ? std::vector<std::string>{"transfer_priority"} : std::vector<std::string>{}));
    for (const Lane& lane : graph.lanes) EXPECT_EQ(lane.yields, on && lane.kind == LaneKind::kCollective);
  }
}

TEST(ShardedGradients, EachMicroBatchIsSummedBeforeItIsAdded) {
  Problem p = small_problem(4, 2, 2, 5);
  p.zero_stage = 2;
  p.shard_gradients = true;
  for (const auto& passes : kLists) {
    const StepGraph graph = build_step_graph(with_passes(p, passes));
    std::map<std::tuple<int, BufferId>, int> last;  // micro-batch by (rank, shard)
    for (TaskId id : tasks_where(
             graph, [](const Task& t) { return t.kind == TaskKind::kGradFold && t.at.micro_batch >= 0; })) {
      const Task& fold = task_of(graph, id);
      const BufferId shard = fold.uses[0].buffer, part = fold.uses[1].buffer;
      const auto [at, first] = last.try_emplace({fold.at.rank, shard}, fold.at.micro_batch);
      EXPECT_EQ(fold.uses[0].access, first ? Access::kWrite : Access::kAccumulate);
      EXPECT_EQ(fold.at.micro_batch, first ? 0 : at->second + 1) << graph.describe(id);
      at->second = fold.at.micro_batch;
      const auto before = ancestors(graph, id);
      EXPECT_TRUE(std::any_of(before.begin(), before.end(), [&](TaskId other) {
        const Task& o = task_of(graph, other);
        return o.kind == TaskKind::kGradSync && o.uses[0].buffer == part;
      }));
      EXPECT_EQ(graph.buffers[static_cast<size_t>(part)].tier, Tier::kShort);
    }
    EXPECT_FALSE(last.empty());
    for (const auto& [key, micro_batch] : last) EXPECT_EQ(micro_batch, p.micro_batches - 1);
  }
}

uint64_t kept_bytes(const Problem& p, const std::vector<uint64_t>& kept) {
  uint64_t bytes = 0;
  for (size_t l = 0; l < p.layers.size(); ++l)
    for (size_t i = 0; i < p.layers[l].saved.size(); ++i)
      if (kept.empty() || kept[l] >> i & 1) bytes += static_cast<uint64_t>(p.layers[l].saved[i].bytes);
  return bytes;
}

TEST(ChooseKept, SelectiveKeepsTheDearOnes) {
  Problem p = small_problem(4, 2, 1, 4);
  const auto kept = choose_kept(p, ActivationPolicy::kSelective, false, 0);
  // 50 flops for 704 bytes: "q" costs 10 for 256, "k" 10 for 128, "out" 30 for 320.
  for (size_t l = 1; l <= 4; ++l) EXPECT_EQ(kept[l] & 7, 6u);
  EXPECT_EQ(kept[0] & 1, 1u);
  EXPECT_EQ(kept[5] & 3, 3u);
  const auto with_last = choose_kept(p, ActivationPolicy::kSelective, true, 0);
  for (size_t l = 1; l <= 4; ++l) EXPECT_EQ(with_last[l] & 7, l <= 2 ? 6u : 7u);
}

TEST(ChooseKept, WhatFitsGrowsWithTheBudgetAndFitsIt) {
  for (int stages : {1, 2}) {
    Problem p = with_passes(small_problem(6, stages, 2, 6), pass_names());
    p.recovery_buffers = 1;
    const auto total = [&](const std::vector<uint64_t>& kept, int stage) {
      Problem one = p;
      one.kept = kept;
      one.ranks = {p.rank_of(stage, 0)};
      const TierBytes tiers = arena_bytes(build_step_graph(one), one.ranks.front());
      return tiers[0] + tiers[1] + tiers[2];
    };
    const auto none = choose_kept(p, ActivationPolicy::kCheckpoint, false, 0);
    int64_t least = 0, most = 0;
    for (int s = 0; s < stages; ++s) {
      least = std::max(least, total(none, s));
      most = std::max(most, total({}, s));
    }
    ASSERT_LT(least, most);
    uint64_t before = kept_bytes(p, none);
    std::set<uint64_t> kinds;
    for (int64_t budget = least; budget <= most + 64; budget += (most - least) / 24) {
      const auto kept = choose_kept(p, ActivationPolicy::kKeepWhatFits, false, budget);
      for (int s = 0; s < stages; ++s) EXPECT_LE(total(kept, s), budget);
      EXPECT_GE(kept_bytes(p, kept), before) << "budget " << budget;
      before = kept_bytes(p, kept);
      kinds.insert(before);
    }
    EXPECT_EQ(kept_bytes(p, choose_kept(p, ActivationPolicy::kKeepWhatFits, false, most)), kept_bytes(p, {}));
    EXPECT_GE(kinds.size(), 4u);
  }
}

TEST(ShardRanges, CoverTheBlockAreCutAtNormBlocksAndAreEven) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    LayerCatalogue layer;
    const int tensors = 1 + static_cast<int>(random() % 9);
    int64_t largest = 0;
    for (int t = 0; t < tensors; ++t) {
      const auto count = 1 + static_cast<int64_t>(random() % (random() % 2 ? 100 : 4 * kNormBlock));
      layer.tensors.push_back({layer.parameters, count});
      layer.parameters += (count + 15) / 16 * 16;
      largest = std::max(largest, std::min(count, kNormBlock) + 16);
    }
    const auto whole = norm_blocks(layer, {0, layer.parameters});
    int64_t elements = 0;
    for (const NormBlock& b : whole) {
      EXPECT_LE(b.part.count, kNormBlock);
      elements += b.part.count;
    }
    for (const ParameterExtent& t : layer.tensors) elements -= t.count;
    EXPECT_EQ(elements, 0);
    for (int replicas : {1, 2, 3, 4, 8}) {
      const auto ranges = shard_ranges(layer, replicas);
      ASSERT_EQ(ranges.size(), static_cast<size_t>(replicas));
      int64_t next = 0;
      std::vector<NormBlock> joined;
      for (const ShardRange& r : ranges) {
        EXPECT_EQ(r.begin, next);
        EXPECT_GE(r.count, 0);
        next = r.end();
        EXPECT_LE(r.count, layer.parameters / replicas + 2 * largest);
        for (const NormBlock& b : norm_blocks(layer, r)) {
          EXPECT_GE(b.part.offset, r.begin);
          EXPECT_LE(b.part.offset + b.part.count, r.end()) << "a block lies in two shards";
          joined.push_back(b);
        }
      }
      EXPECT_EQ(next, layer.parameters);
      ASSERT_EQ(joined.size(), whole.size());
      for (size_t i = 0; i < whole.size(); ++i) {
        EXPECT_EQ(joined[i].tensor, whole[i].tensor);
        EXPECT_EQ(joined[i].part.offset, whole[i].part.offset);
      }
    }
  }
}

// Two replicas that meet in two communicators.
StepGraph two_communicators(bool same_order) {
  StepGraphBuilder b;
  for (int rank = 0; rank < 2; ++rank)
    for (int i = 0; i < 2; ++i) {
      Task t;
      t.kind = TaskKind::kGradSync;
      t.at.rank = static_cast<int16_t>(rank);
      t.at.stage = 0;
      t.communicator = (i == 0) == (same_order || rank == 0) ? kDataParallel : kWorld;
      t.lane = b.lane(rank, LaneKind::kCollective);
      b.append(std::move(t));
    }
  return b.build();
}

TEST(Check, FindsRanksThatWaitForEachOtherInDifferentCommunicators) {
  EXPECT_TRUE(check(two_communicators(true)).empty());
  const auto problems = check(two_communicators(false));
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_NE(problems[0].message.find("cannot finish"), std::string::npos);
  EXPECT_NE(problems[0].message.find("on 1 of 2 ranks"), std::string::npos);
}

// A rank whose compute waits for a sum that another rank would only start after it had received from this
// one.
TEST(Check, FindsASumThatWaitsForATransferBehindIt) {
  for (bool deadlock : {false, true}) {
    StepGraphBuilder b;
    const auto add = [&](TaskKind kind, int rank, LaneKind lane, int peer, std::vector<TaskId> after) {
      Task t;
      t.kind = kind;
      t.at.rank = static_cast<int16_t>(rank);
      t.at.stage = 0;
      t.communicator = peer;
      t.lane = b.lane(rank, lane);
      for (TaskId id : after) t.after.push_back({id, 0});
      return b.append(std::move(t));
    };
    const TaskId mine = add(TaskKind::kGradSync, 0, LaneKind::kCollective, kDataParallel, {});
    const TaskId send = add(TaskKind::kSend, 0, LaneKind::kSendForward, 1,
                            deadlock ? std::vector<TaskId>{mine} : std::vector<TaskId>{});
    const TaskId receive = add(TaskKind::kReceive, 1, LaneKind::kReceiveForward, 0, {send});
    add(TaskKind::kGradSync, 1, LaneKind::kCollective, kDataParallel, {receive});
    EXPECT_EQ(check(b.build()).empty(), !deadlock);
  }
}

}  // namespace
}  // namespace trainer
