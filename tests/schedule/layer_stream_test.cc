#include "schedule/layer_stream.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "schedule/check.h"
#include "schedule/memory.h"
#include "schedule/problems.h"
#include "schedule/tagged_arenas.h"

namespace trainer {
namespace {

using testing::small_problem;

constexpr int kBlocks = 6;
constexpr int64_t kBoundary = 512;

Problem streamed_problem(int micro_batches = 1, bool tied = true, int64_t element_bytes = 2) {
  return small_problem(kBlocks, 1, 1, micro_batches, tied, element_bytes);
}

// Boundary 1 in host memory, 2 recomputed, 3 in storage, 4 recomputed.
CheckpointSchedule mixed_schedule() {
  CheckpointSchedule s = fixed_interval(kBlocks, kBlocks);
  s.boundaries[1] = {BoundaryHome::kHost, {{1, 500}, {3, 12}}, {}, {}, {{6, 100}, {4, 412}}};
  s.boundaries[3] = {
      BoundaryHome::kStorage, {{3, 256}, {4, 256}}, {{4, 200}, {5, 312}}, {{6, kBoundary}}, {{5, kBoundary}}};
  s.boundaries[5].home = BoundaryHome::kDevice;
  return s;
}

// Every boundary in host memory, written at once and fetched as late as can be.
CheckpointSchedule all_away() {
  CheckpointSchedule s = fixed_interval(kBlocks, 1);
  for (int i = 1; i < kBlocks; ++i)
    s.boundaries[static_cast<size_t>(i)] = {
        BoundaryHome::kHost, {{i, kBoundary}}, {}, {}, {{i + 1, kBoundary}}};
  return s;
}

std::vector<CheckpointSchedule> schedules() {
  return {fixed_interval(kBlocks, 1), fixed_interval(kBlocks, 4), mixed_schedule(), all_away()};
}

StepGraph stream(const Problem& problem, const CheckpointSchedule& schedule, bool recompute_ends = false) {
  StepGraphBuilder builder;
  layer_stream(builder, problem, {schedule, recompute_ends});
  return place_memory(builder.build());
}

int count(const StepGraph& graph, TaskKind kind, Role role) {
  int found = 0;
  for (const Task& t : graph.tasks) found += t.kind == kind && graph.find(t, role);
  return found;
}

TEST(LayerStream, PassesTheChecksAndKeepsToItsMemoryInAnyOrder) {
  for (int micro_batches : {1, 3})
    for (bool tied : {false, true})
      for (int64_t element_bytes : {2, 4})
        for (const CheckpointSchedule& schedule : schedules()) {
          const StepGraph graph = stream(streamed_problem(micro_batches, tied, element_bytes), schedule);
          for (const Diagnostic& d : check(graph)) ADD_FAILURE() << d.message;
          for (uint64_t seed = 0; seed < 4; ++seed) EXPECT_EQ(testing::overwritten_lines(graph, 3, seed), 0);
        }
}

TEST(LayerStream, TheTaggedOracleSeesAMissingReuseEdge) {
  StepGraph graph = stream(streamed_problem(), mixed_schedule());
  for (Task& task : graph.tasks)
    if (task.kind == TaskKind::kReload)
      std::erase_if(task.after, [&](const Edge& e) {
        return graph.tasks[static_cast<size_t>(e.producer)].kind != TaskKind::kOffload;
      });
  int violations = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) violations += testing::overwritten_lines(graph, 3, seed);
  EXPECT_GT(violations, 0);
}

// What each buffer holds, followed through random orders: every pass must find its own layer's weights of the
// last update, the boundary that the forward pass made, and every update the gradients of all micro-batches.
class Contents {
 public:
  explicit Contents(const StepGraph& graph) : graph_(graph), held_(graph.buffers.size()) {
    for (size_t b = 0; b < graph.buffers.size(); ++b)
      if (graph.buffers[b].persistent) held_[b].bytes = graph.buffers[b].bytes;
    for (const Task& t : graph.tasks)
      if (t.kind == TaskKind::kUpdateShard) at(t, Role::kMaster).text = weights(t.at.layer_begin, 0);
    for (const Task& t : graph.tasks) {
      if (t.kind == TaskKind::kUpdateShard && graph.find(t, Role::kWeights))
        at(t, Role::kWeights).text = at(t, Role::kMaster).text;
      if (t.kind == TaskKind::kReload && t.at.micro_batch < 0)
        at(t, Role::kWeights).text = weights(t.at.layer_begin, 0);
    }
  }

  void run(Instance instance) {
    const Task& t = graph_.tasks[static_cast<size_t>(instance.task)];
    const int l = t.at.layer_begin, m = t.at.micro_batch;
    if (t.kind == TaskKind::kReload || t.kind == TaskKind::kOffload) {
      const Use& from = t.uses[0];
      const Use& to = t.uses[1];
      const Held source = held_[static_cast<size_t>(from.buffer)];
      Held& target = held_[static_cast<size_t>(to.buffer)];
      if (to.access == Access::kWrite)
        target = {source.text, 0};
      else
        expect(target.text, source.text, instance);
      target.bytes += t.bytes;
      EXPECT_LE(target.bytes, source.bytes) << graph_.describe(instance.task);
      return;
    }
    if (graph_.find(t, Role::kWeights) && t.kind != TaskKind::kUpdateShard)
      expect(at(t, Role::kWeights).text, weights(l, instance.step), instance);
    if (l > 0 && graph_.find(t, Role::kInput) && t.kind != TaskKind::kGradFold) {
      expect(at(t, Role::kInput).text, boundary(l - 1, m), instance);
      EXPECT_EQ(at(t, Role::kInput).bytes, kBoundary) << graph_.describe(instance.task);
    }
    for (const Use& use : t.uses) {
      Held& held = held_[static_cast<size_t>(use.buffer)];
      const std::string saved = fmt::format("saved {} {} {}", use.index, l, m);
      if (use.role == Role::kSaved && use.access == Access::kWrite) held = {saved, 0};
      if (use.role == Role::kSaved && use.access == Access::kRead) expect(held.text, saved, instance);
    }
    if (t.kind == TaskKind::kForward || t.kind == TaskKind::kRecover) {
      if (graph_.find(t, Role::kOutput)) at(t, Role::kOutput) = {boundary(l, m), kBoundary};
      if (graph_.find(t, Role::kGradient)) add(t, Role::kGradient, "head");
      if (graph_.find(t, Role::kSharedGradient)) add(t, Role::kSharedGradient, "shared");
    }
    if (t.kind == TaskKind::kBackward) add(t, Role::kGradient, fmt::format("{}:{}", l, m));
    if (t.kind == TaskKind::kGradFold) add(t, Role::kGradient, at(t, Role::kInput).text);
    if (t.kind == TaskKind::kUpdateShard) {
      expect_gradient(t, instance);
      expect(at(t, Role::kMaster).text, weights(l, instance.step), instance);
      at(t, Role::kMaster).text = weights(l, instance.step + 1);
      if (graph_.find(t, Role::kWeights)) at(t, Role::kWeights).text = weights(l, instance.step + 1);
    }
  }

  int micro_batches = 1;
  bool tied = false;

 private:
  struct Held {
    std::string text;
    int64_t bytes = 0;
  };
  static std::string weights(int l, int step) { return fmt::format("weights {} of step {}", l, step); }
  static std::string boundary(int i, int m) { return fmt::format("boundary {} of {}", i, m); }

  Held& at(const Task& t, Role role) { return held_[static_cast<size_t>(graph_.find(t, role)->buffer)]; }
  void expect(const std::string& found, const std::string& wanted, Instance instance) {
    EXPECT_EQ(found, wanted) << graph_.describe(instance.task) << ", step " << instance.step;
  }
  void add(const Task& t, Role role, const std::string& what) {
    Held& held = at(t, role);
    const bool opens = graph_.find(t, role)->access == Access::kWrite;
    held.text = opens ? what : held.text + "+" + what;
    held.bytes = graph_.buffers[static_cast<size_t>(graph_.find(t, role)->buffer)].bytes;
  }
  void expect_gradient(const Task& t, Instance instance) {
    const int l = t.at.layer_begin;
    std::string wanted;
    for (int m = 0; m < micro_batches; ++m)
      wanted += fmt::format("{}{}{}:{}", m ? "+" : "", l == kBlocks + 1 ? "head+" : "", l, m);
    if (l == 0 && tied)
      for (int m = 0; m < micro_batches; ++m) wanted += "+shared";
    expect(at(t, Role::kGradient).text, wanted, instance);
  }

  const StepGraph& graph_;
  std::vector<Held> held_;
};

TEST(LayerStream, EveryPassFindsWhatItNeedsInAnyOrder) {
  for (int micro_batches : {1, 3})
    for (bool tied : {false, true})
      for (bool recompute_ends : {false, true})
        for (const CheckpointSchedule& schedule : schedules()) {
          const StepGraph graph = stream(streamed_problem(micro_batches, tied), schedule, recompute_ends);
          for (uint64_t seed = 0; seed < 3; ++seed) {
            Contents contents(graph);
            contents.micro_batches = micro_batches;
            contents.tied = tied;
            testing::run_in_random_order(
                graph, 3, seed, [](Instance) {}, [&](Instance i) { contents.run(i); });
          }
        }
}

TEST(LayerStream, RecomputesWhatTheScheduleSays) {
  const Problem problem = streamed_problem(2);
  const auto recomputed = [&](const CheckpointSchedule& schedule, bool ends) {
    return count(stream(problem, schedule, ends), TaskKind::kRecover, Role::kOutput) / 2;
  };
  EXPECT_EQ(recomputed(fixed_interval(kBlocks, 1), false), 0);
  EXPECT_EQ(recomputed(fixed_interval(kBlocks, 4), false), 4);  // 3 of the first block, 1 of the second
  EXPECT_EQ(recomputed(fixed_interval(kBlocks, 4), true), 6);
  EXPECT_EQ(recomputed(mixed_schedule(), false), 2);
  EXPECT_EQ(count(stream(problem, mixed_schedule()), TaskKind::kRecover, Role::kSaved), 2 * kBlocks);
}

TEST(LayerStream, MovesTheBytesOfTheSchedule) {
  const StepGraph graph = stream(streamed_problem(), mixed_schedule());
  std::map<std::pair<LaneKind, int>, int64_t> moved;  // of boundaries
  for (const Task& t : graph.tasks)
    if ((t.kind == TaskKind::kOffload || t.kind == TaskKind::kReload) && graph.find(t, Role::kOutput, 0) &&
        graph.find(t, Role::kInput, 0))
      moved[{graph.lanes[static_cast<size_t>(t.lane)].kind, t.at.layer_begin}] += t.bytes;
  for (const Task& t : graph.tasks)
    if ((t.kind == TaskKind::kOffload || t.kind == TaskKind::kReload) && graph.find(t, Role::kOutput, 1))
      moved[{graph.lanes[static_cast<size_t>(t.lane)].kind, t.at.layer_begin}] += t.bytes;
  const std::map<std::pair<LaneKind, int>, int64_t> expected = {
      {{LaneKind::kDeviceToHost, 1}, kBoundary}, {{LaneKind::kDeviceToHost, 3}, kBoundary},
      {{LaneKind::kHostToDevice, 1}, kBoundary}, {{LaneKind::kHostToDevice, 3}, kBoundary},
      {{LaneKind::kStorageWrite, 3}, kBoundary}, {{LaneKind::kStorageRead, 3}, kBoundary}};
  EXPECT_EQ(moved, expected);
}

TEST(LayerStream, WeightsPassThroughTwoSlots) {
  const Problem problem = streamed_problem();
  const StepGraph graph = stream(problem, fixed_interval(kBlocks, 1));
  std::set<BufferId> slots;
  int copies = 0;
  for (const Task& t : graph.tasks)
    if (t.kind == TaskKind::kReload && t.at.micro_batch >= 0 && graph.find(t, Role::kWeights)) {
      slots.insert(graph.find(t, Role::kWeights)->buffer);
      ++copies;
    }
  EXPECT_EQ(slots.size(), 2u);
  EXPECT_EQ(copies, kBlocks + kBlocks - 2);  // the last two layers' are still there when backward begins
  int64_t blocks = 0;
  for (const LayerCatalogue& c : problem.layers) blocks += c.parameters * problem.element_bytes;
  for (BufferId slot : slots) EXPECT_LT(2 * graph.buffers[static_cast<size_t>(slot)].bytes, blocks / 2);
}

TEST(LayerStream, BoundariesAwayFromTheDeviceDoNotFillIt) {
  const auto device_bytes = [](int blocks, bool away) {
    CheckpointSchedule s = fixed_interval(blocks, 1);
    for (int i = 1; away && i < blocks; ++i)
      s.boundaries[static_cast<size_t>(i)] = {
          BoundaryHome::kHost, {{i, kBoundary}}, {}, {}, {{i + 1, kBoundary}}};
    return arena_bytes(stream(small_problem(blocks, 1, 1, 1), s), 0)[1];
  };
  // What is left of 23 inner boundaries: one that is sent or fetched, one that is worked on, and their
  // neighbours.
  EXPECT_GE(device_bytes(24, false) - device_bytes(24, true), 18 * kBoundary);
}

TEST(LayerStream, RefusesWhatItCannotRun) {
  const auto refused = [](const Problem& problem, const CheckpointSchedule& schedule,
                          const std::string& message) {
    StepGraphBuilder builder;
    try {
      layer_stream(builder, problem, {schedule});
      ADD_FAILURE() << "built in spite of: " << message;
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
    }
  };
  refused(small_problem(kBlocks, 2, 1, 1), fixed_interval(kBlocks, 1), "found 2 ranks");
  refused(streamed_problem(), fixed_interval(kBlocks + 1, 1), "the schedule has 8 boundaries, the model 7");
  Problem evaluation = streamed_problem();
  evaluation.forward_only = true;
  refused(evaluation, fixed_interval(kBlocks, 1), "training");
  Problem other = streamed_problem();
  other.layers[1].output_bytes = 1024;
  refused(other, mixed_schedule(), "moves 512 of 1024 bytes");
}

}  // namespace
}  // namespace trainer
