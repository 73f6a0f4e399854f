#include "sim/cost_model.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

#include "base/error.h"
#include "schedule/problems.h"

namespace trainer {
namespace {

Platform small_platform(int devices_per_node = 1) {
  Platform p;
  p.name = "small";
  p.devices_per_node = devices_per_node;
  p.matmul_per_second = {{"fp32", 1000}, {"bf16", 4000}};
  p.memory_bytes_per_second = 100;
  p.forward_efficiency = 0.5;
  p.backward_efficiency = 0.25;
  p.memory_efficiency = 0.5;
  for (LinkUse use : {LinkUse::kBoundary, LinkUse::kCollective}) {
    p.links[static_cast<size_t>(use)].within_node = {1, 40, ""};
    p.links[static_cast<size_t>(use)].across_nodes = {2, 10, ""};
  }
  return p;
}

double cost_of(const StepGraph& graph, const CostTable& costs, TaskKind kind, int layer, int rank = 0) {
  for (size_t id = 0; id < graph.tasks.size(); ++id) {
    const Task& t = graph.tasks[id];
    if (t.kind == kind && t.at.layer_begin == layer && t.at.rank == rank)
      return costs.seconds[id] + (costs.bytes[id] > 0 ? costs.bytes[id] / costs.rate[id] : 0);
  }
  ADD_FAILURE() << "no " << name_of(kind) << " of layer " << layer;
  return 0;
}

TEST(CostModel, TheLongerOfProductsAndMemoryCounts) {
  Problem problem = testing::small_problem(2, 1, 1, 1, false, 4);
  problem.layers[1].forward_flops = 50000;
  problem.layers[1].backward_flops = 100000;
  problem.layers[2].forward_flops = 1;
  const StepGraph graph = build_step_graph(problem);
  Platform platform = small_platform();
  const CostTable costs = cost_model(graph, problem, platform);
  EXPECT_DOUBLE_EQ(cost_of(graph, costs, TaskKind::kForward, 1), 100);
  EXPECT_DOUBLE_EQ(cost_of(graph, costs, TaskKind::kBackward, 1), 400);
  // 288 weights of 4 bytes, 512 in, 512 out, 704 saved, at 50 bytes per second.
  EXPECT_DOUBLE_EQ(cost_of(graph, costs, TaskKind::kForward, 2), (288 * 4 + 512 + 512 + 704) / 50.0);
  // Weights and two moments are read and written, the gradient and the step's control (64 bytes) read.
  EXPECT_DOUBLE_EQ(cost_of(graph, costs, TaskKind::kUpdateShard, 2), (288 * 4 * 7 + 64) / 50.0);
  platform.task_overhead_seconds = 3;
  EXPECT_DOUBLE_EQ(cost_of(graph, cost_model(graph, problem, platform), TaskKind::kForward, 1), 103);
}

TEST(CostModel, ProductsAndMemoryAddUpWhereThePlatformSaysSo) {
  Problem problem = testing::small_problem(2, 1, 1, 1, false, 4);
  problem.layers[1].forward_flops = 50000;
  const StepGraph graph = build_step_graph(problem);
  Platform platform = small_platform();
  platform.memory_overlaps_products = false;
  const double products = cost_of(graph, cost_model(graph, problem, platform), TaskKind::kForward, 1);
  problem.layers[1].forward_flops = 0;
  const double memory = cost_of(graph, cost_model(graph, problem, platform), TaskKind::kForward, 1);
  EXPECT_GT(memory, 50);
  EXPECT_DOUBLE_EQ(products, 100 + memory);
}

TEST(CostModel, MeasuredLayersCountAsMeasured) {
  Problem problem = testing::small_problem(2, 1, 1, 1, false, 4);
  problem.layers[1].forward_flops = 50000;
  const StepGraph graph = build_step_graph(problem);
  Platform platform = small_platform();
  MeasuredLayer m;
  m.shape = shape_of(problem.layers[1], 4, false);
  m.forward_seconds = 0.5;
  m.update_seconds = 0.125;
  platform.measured.push_back(m);
  m.shape.pipelined = true;
  m.forward_seconds = 0.75;
  platform.measured.push_back(m);
  const CostTable costs = cost_model(graph, problem, platform);
  EXPECT_DOUBLE_EQ(cost_of(graph, costs, TaskKind::kForward, 1), 0.5);
  EXPECT_DOUBLE_EQ(cost_of(graph, costs, TaskKind::kUpdateShard, 1), 0.125);
  EXPECT_GT(cost_of(graph, costs, TaskKind::kBackward, 1), 1);
  EXPECT_GT(cost_of(graph, costs, TaskKind::kForward, 2), 1);

  Problem stages = testing::small_problem(2, 2, 1, 2, false, 4);
  stages.layers[1].forward_flops = 50000;
  const StepGraph pipeline = build_step_graph(stages);
  EXPECT_DOUBLE_EQ(cost_of(pipeline, cost_model(pipeline, stages, platform), TaskKind::kForward, 1), 0.75);
}

// The first micro-batch writes the gradient, the others add to it; a replica squares its share.
TEST(CostModel, MeasuredLayersOfTheFirstMicroBatchAndOfAShare) {
  Problem problem = testing::small_problem(2, 1, 2, 2, false, 2);
  const StepGraph graph = build_step_graph(problem);
  Platform platform = small_platform(2);
  MeasuredLayer m;
  m.shape = shape_of(problem.layers[1], 2, false);
  m.backward_seconds = 4;
  m.first_backward_seconds = 5;
  m.refresh_seconds = 0.25;
  m.norm_seconds = 0.5;
  platform.measured.push_back(m);
  const CostTable costs = cost_model(graph, problem, platform);
  std::vector<double> backward;
  for (size_t id = 0; id < graph.tasks.size(); ++id) {
    const Task& t = graph.tasks[id];
    if (t.kind == TaskKind::kBackward && t.at.layer_begin == 1 && t.at.rank == 0)
      backward.push_back(costs.seconds[id]);
  }
  EXPECT_EQ(backward, (std::vector<double>{5, 4}));
  EXPECT_DOUBLE_EQ(cost_of(graph, costs, TaskKind::kPrefetchWeights, 1), 0.25);
  EXPECT_DOUBLE_EQ(cost_of(graph, costs, TaskKind::kGradNorm, 1), 0.25);
}

// Where a Recover stands before the backward, both passes take what was measured so, and what was not, as if
// kept.
TEST(CostModel, MeasuredLayersThatAreRecovered) {
  Problem problem = testing::small_problem(1, 1, 1, 2, false, 2);
  problem.kept.assign(problem.layers.size(), ~uint64_t{0});
  problem.kept[1] = 0;
  Platform platform = small_platform(1);
  MeasuredLayer m;
  m.shape = shape_of(problem.layers[1], 2, false);
  m.forward_seconds = 3;
  m.first_forward_seconds = 3.5;
  m.backward_seconds = 6;
  m.first_backward_seconds = 7;
  m.recovered_forward_seconds = 2;
  m.recovered_backward_seconds = 4;
  m.first_recovered_backward_seconds = 5;
  platform.measured.push_back(m);
  const auto backwards = [&](bool recovered) {
    Problem one = problem;
    if (!recovered) one.kept.clear();
    const StepGraph graph = build_step_graph(one);
    const CostTable costs = cost_model(graph, one, platform);
    EXPECT_DOUBLE_EQ(cost_of(graph, costs, TaskKind::kForward, 1), recovered ? 2 : 3);
    std::vector<double> seconds;
    for (size_t id = 0; id < graph.tasks.size(); ++id)
      if (graph.tasks[id].kind == TaskKind::kBackward && graph.tasks[id].at.layer_begin == 1)
        seconds.push_back(costs.seconds[id]);
    return seconds;
  };
  EXPECT_EQ(backwards(true), (std::vector<double>{5, 4}));
  EXPECT_EQ(backwards(false), (std::vector<double>{7, 6}));
}

// A sum that takes all of a core and a layer that needs it too each get half; one that takes a quarter gets
// it.
TEST(CostModel, TransfersThatTakeCoresSlowLayersDown) {
  Problem problem = testing::small_problem(2, 1, 2, 1, false, 4);
  problem.passes = {};
  const StepGraph graph = build_step_graph(problem);
  Platform platform = small_platform(2);
  Link& sums = platform.links[static_cast<size_t>(LinkUse::kCollective)].within_node;
  const CostTable before = cost_model(graph, problem, platform);
  sums.core_share = 0.25;
  const CostTable costs = cost_model(graph, problem, platform);
  for (size_t id = 0; id < graph.tasks.size(); ++id) {
    const Task& t = graph.tasks[id];
    const auto alone = [&](const CostTable& c) {
      return c.seconds[id] + (c.bytes[id] > 0 ? c.bytes[id] / c.rate[id] : 0);
    };
    // Nothing changes for those that run alone.
    EXPECT_NEAR(alone(costs), alone(before), 1e-9) << graph.describe(static_cast<TaskId>(id));
    const int group = costs.link_group[static_cast<size_t>(t.lane)];
    if (t.kind == TaskKind::kForward) {
      EXPECT_EQ(costs.rate[id], 1);
      EXPECT_EQ(costs.group_rate[static_cast<size_t>(group)], 1);
    }
    if (t.kind == TaskKind::kGradSync) {
      EXPECT_EQ(costs.rate[id], 0.25);
      const LaneId compute = graph.tasks[0].at.rank == t.at.rank ? graph.tasks[0].lane : kNone;
      if (compute != kNone) {
        EXPECT_EQ(costs.link_group[static_cast<size_t>(compute)], group);
      }
    }
  }
}

// The first stage goes on with its second micro-batch while the first one's activations leave; when the
// second's leave it waits, and its rank has nothing to do.
TEST(CostModel, MessagesWaitForACoreOnlyBesideWork) {
  Problem problem = testing::small_problem(2, 2, 1, 2, false, 4);
  const StepGraph graph = build_step_graph(problem);
  Platform platform = small_platform(2);
  const double alone = 1 + (512 + 64) / 40.0, wait = 5;
  platform.links[static_cast<size_t>(LinkUse::kBoundary)].within_node.core_wait_seconds = wait;
  const auto seconds = [&](int micro_batch) {
    for (const TaskRun& run : simulate(graph, cost_model(graph, problem, platform)).runs) {
      const Task& t = graph.tasks[static_cast<size_t>(run.instance.task)];
      if (t.kind == TaskKind::kSend && t.at.rank == 0 && t.at.micro_batch == micro_batch)
        return run.end - run.begin;
    }
    ADD_FAILURE() << "no such message";
    return 0.0;
  };
  EXPECT_NEAR(seconds(0), alone + wait, 0.01 * wait);
  EXPECT_NEAR(seconds(1), alone, 0.01 * wait);
}

TEST(CostModel, SendsKnowWhetherTheyLeaveTheNode) {
  const Problem problem = testing::small_problem(3, 3, 1, 1, false, 4);
  const StepGraph graph = build_step_graph(problem);
  const CostTable costs = cost_model(graph, problem, small_platform(2));
  EXPECT_DOUBLE_EQ(cost_of(graph, costs, TaskKind::kSend, -1, 0), 1 + (512 + 64) / 40.0);
  EXPECT_DOUBLE_EQ(cost_of(graph, costs, TaskKind::kSend, -1, 1), 2 + (512 + 64) / 10.0);
  EXPECT_DOUBLE_EQ(cost_of(graph, costs, TaskKind::kReceive, -1, 1), 0);
}

// Four neighbours exchange within nodes of four, across nodes of two, and where only some groups straddle a
// border, those do.
TEST(CostModel, CutLayersExchangeAcrossNodesWhereTheirGroupLeavesOne) {
  Problem problem = testing::small_problem(4, 2, 1, 1, false, 4);
  problem.tensor_ranks = 4;
  for (LayerCatalogue& layer : problem.layers) layer.forward_exchange = {2, 400};
  Problem whole = problem;
  for (LayerCatalogue& layer : whole.layers) layer.forward_exchange = {};
  const StepGraph graph = build_step_graph(problem);
  Link own;  // of exchanges; none: that of collectives
  const auto exchange = [&](int devices_per_node, int rank) {
    Platform platform = small_platform(devices_per_node);
    platform.links[static_cast<size_t>(LinkUse::kExchange)].across_nodes = own;
    const int layer = rank < 4 ? 1 : 3;
    return cost_of(graph, cost_model(graph, problem, platform), TaskKind::kForward, layer, rank) -
           cost_of(graph, cost_model(graph, whole, platform), TaskKind::kForward, layer, rank);
  };
  constexpr double kWithin = 2 * 1 + 400 / 40.0, kAcross = 2 * 2 + 400 / 10.0;
  for (int rank : {0, 3, 4, 7}) {
    EXPECT_DOUBLE_EQ(exchange(4, rank), kWithin);
    EXPECT_DOUBLE_EQ(exchange(8, rank), kWithin);
    EXPECT_DOUBLE_EQ(exchange(6, rank), rank < 4 ? kWithin : kAcross);
    EXPECT_DOUBLE_EQ(exchange(2, rank), kAcross);
    EXPECT_DOUBLE_EQ(exchange(1, rank), kAcross);
  }
  own = {5, 100, "", 0};
  EXPECT_DOUBLE_EQ(exchange(1, 0), 2 * 5 + 400 / 100.0);
  EXPECT_DOUBLE_EQ(exchange(4, 0), kWithin);
}

// Three ranks on nodes of two: what two of them do on their host has half its memory's rate.
TEST(CostModel, RanksShareTheirHostsMemory) {
  const Problem problem = testing::small_problem(3, 3, 1, 1, false, 4);
  StepGraph graph = build_step_graph(problem);
  for (Lane& lane : graph.lanes)
    if (lane.kind == LaneKind::kCompute) lane.kind = LaneKind::kHostCompute;
  const auto seconds = [&](int devices_per_node, int layer, int rank) {
    Platform platform = small_platform(devices_per_node);
    platform.host_memory_bytes_per_second = 60;
    return cost_of(graph, cost_model(graph, problem, platform), TaskKind::kUpdateShard, layer, rank);
  };
  for (const auto& [layer, rank, sharers] : {std::tuple{1, 0, 2}, {2, 1, 2}, {3, 2, 1}}) {
    const double alone = seconds(1, layer, rank);
    EXPECT_GT(alone, 0);
    EXPECT_DOUBLE_EQ(seconds(2, layer, rank), sharers * alone);
    EXPECT_DOUBLE_EQ(seconds(3, layer, rank), 3 * alone);
  }
}

// Sums of one part of a layer are met by the ranks that hold this part.
TEST(CostModel, TensorPartsMeetByThemselves) {
  Problem problem = testing::small_problem(2, 1, 2, 1, false, 4);
  problem.tensor_ranks = 2;
  const StepGraph graph = build_step_graph(problem);
  const std::vector<int> meetings = collective_meetings(graph, problem);
  std::map<int, std::set<int>> ranks;
  for (size_t id = 0; id < graph.tasks.size(); ++id)
    if (graph.tasks[id].kind == TaskKind::kGradSync) ranks[meetings[id]].insert(graph.tasks[id].at.rank);
  EXPECT_EQ(ranks.size(), 8u);  // four layers, two parts
  for (const auto& [meeting, who] : ranks)
    EXPECT_TRUE((who == std::set{0, 2} || who == std::set{1, 3})) << meeting;
}

TEST(CostModel, WhatThePlatformLacksIsNamed) {
  const Problem problem = testing::small_problem(3, 3, 1, 1, false, 4);
  const StepGraph graph = build_step_graph(problem);
  Platform platform = small_platform(2);
  platform.links[0].across_nodes = {};
  EXPECT_THROW(cost_model(graph, problem, platform), InputError);
}

TEST(CostModel, DevicesThatShareMemorySlowEachOtherDown) {
  const Problem problem = testing::small_problem(2, 1, 2, 1, false, 4);
  const StepGraph graph = build_step_graph(problem);
  Platform platform = small_platform(2);
  const auto forward_end = [&](double shared) {
    platform.memory_group = "memory";
    platform.shared_links["memory"] = {SharedLink::Scope::kNode, shared};
    for (const TaskRun& run : simulate(graph, cost_model(graph, problem, platform)).runs)
      if (graph.tasks[static_cast<size_t>(run.instance.task)].kind == TaskKind::kForward) return run.end;
    return 0.0;
  };
  // Each alone moves 50 bytes per second.
  EXPECT_DOUBLE_EQ(forward_end(50), 2 * forward_end(100));
  EXPECT_DOUBLE_EQ(forward_end(1000), forward_end(100));
}

TEST(CollectiveCost, ByAlgorithm) {
  Platform p = small_platform();
  const auto cost = [&](const char* algorithm, int devices, int per_node) {
    p.collective_algorithm = algorithm;
    return collective_cost(p, CollectiveKind::kReduceScatter, 800, devices, per_node);
  };
  // Within a node: latency 1, 40 bytes per second; 7/8 of the array go to the others.
  for (const auto& [algorithm, seconds] :
       {std::pair{"direct", 1.0}, {"ring", 7.0}, {"tree", 3.0}, {"hierarchical", 3.0}}) {
    const CollectiveCost c = cost(algorithm, 8, 8);
    EXPECT_DOUBLE_EQ(c.seconds, seconds) << algorithm;
    EXPECT_DOUBLE_EQ(c.bytes, 700) << algorithm;
    EXPECT_DOUBLE_EQ(c.rate, 40) << algorithm;
    EXPECT_FALSE(c.across_nodes) << algorithm;
  }
  // Two nodes of four: latency 2, 10 bytes per second between them.
  CollectiveCost c = cost("direct", 8, 4);
  EXPECT_DOUBLE_EQ(c.seconds, 2 + 300 / 40.0);
  EXPECT_DOUBLE_EQ(c.bytes, 400);
  EXPECT_DOUBLE_EQ(c.rate, 10);
  EXPECT_TRUE(c.across_nodes);
  c = cost("ring", 8, 4);
  EXPECT_DOUBLE_EQ(c.seconds, 7 * 2);  // 17.5 s within are hidden behind as many across
  EXPECT_DOUBLE_EQ(c.bytes, 700 / 4.0);
  c = cost("tree", 8, 4);
  EXPECT_DOUBLE_EQ(c.seconds, 3 * 2 + 300 / 40.0);
  c = cost("hierarchical", 8, 4);
  EXPECT_DOUBLE_EQ(c.seconds, 2 * 1 + 1 * 2 + 600 / 40.0);
  EXPECT_DOUBLE_EQ(c.bytes, 100);
  const CollectiveCost both = collective_cost(p, CollectiveKind::kAllReduce, 800, 8, 4);
  EXPECT_DOUBLE_EQ(both.bytes, 200);
  EXPECT_DOUBLE_EQ(both.seconds, 2 * c.seconds);
  p.collective_slowdown_per_device = 1.0 / 7;
  EXPECT_DOUBLE_EQ(cost("direct", 8, 8).rate, 20);
  EXPECT_DOUBLE_EQ(cost("direct", 1, 1).bytes, 0);
}

}  // namespace
}  // namespace trainer
