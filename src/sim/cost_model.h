// From a program and a platform to what each task costs.
#pragma once

#include <optional>
#include <string>

#include "schedule/problem.h"
#include "schedule/step_graph.h"
#include "sim/platform.h"
#include "sim/simulator.h"

namespace trainer {

// Of a graph built from `problem`; ranks are devices, neighbours fill a node.
//   Forward, Backward, Recover: as measured where the platform has the layer's shape; else the longer of its
//   products at the platform's matmul rate and its operands at the memory bandwidth, times the efficiencies.
//   Other tasks on compute lanes: the bytes they read and write (UpdateShard: as measured, by its share); on
//   a host's, at the rank's equal share of the node's host memory bandwidth.
//   Send: latency and bytes; Receive is free, its time is the Send's.
//   GradSync, NormSync, gathering PrefetchW: see collective_cost, over the whole group, with its other ranks
//   in the graph or not. Ranks of a collective meet.
//   Offload, Reload: their bytes over the host links.
// A graph of some ranks only stands for all of them if why_not_foldable says nothing: the shared links are
// then divided among the ranks that each rank of the graph stands for.
// Throws InputError when the platform lacks a rate or link that the program needs.
CostTable cost_model(const StepGraph& graph, const Problem& problem, const Platform& platform);

// [tasks] CostTable::meeting for the collectives of a graph built from `problem`.
std::vector<int> collective_meetings(const StepGraph& graph, const Problem& problem);

// What one rank's part in a collective costs.
struct CollectiveCost {
  double seconds = 0;  // messages that wait for each other, and what stays within the node
  double bytes = 0;    // over the link below
  double rate = 0;
  bool across_nodes = false;
};

enum class CollectiveKind : uint8_t { kReduceScatter, kAllGather, kAllReduce };

// `bytes`: of the whole array on each rank. `devices` ranks of the platform, `devices_per_node` of them
// beside each other in every node. By Platform::collective_algorithm, n = devices, k of a node, N = n / k:
//   direct        one message; (n - 1) / n of the array to each of the others
//   ring          n - 1 messages; (n - 1) / n, of which a node's ranks share what leaves it
//   tree          ceil(log2 n) messages; (n - 1) / n
//   hierarchical  ceil(log2 k) + ceil(log2 N) messages; (k - 1) / k in the node, (N - 1) / N of a k-th across
// An all-reduce is a reduce-scatter and an all-gather.
CollectiveCost collective_cost(const Platform& platform, CollectiveKind kind, double bytes, int devices,
                               int devices_per_node);

}  // namespace trainer
