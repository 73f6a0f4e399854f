// `trainer profile`: this machine as a platform file.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "app/layer_profile.h"
#include "app/link_profile.h"

namespace trainer {

// What one `trainer profile` has measured; every number is that of one rank among those that ran at once.
struct MachineProfile {
  std::string source;
  int ranks_per_node = 1;
  int64_t memory_bytes = 0, node_memory_bytes = 0;
  std::map<std::string, double> matmul_flops_per_second;  // by precision
  double memory_bytes_per_second = 0;                     // while all ranks of the node use the memory
  LayerProfile layers;
  std::string collective_algorithm = "direct";
  std::optional<LinkProfile> within_node, across_nodes;
};
// Layers of shapes that were not measured are estimated with the efficiency that the measured blocks reach.
Platform to_platform(const MachineProfile& profile);

// `trainer profile CONFIG... [options]`. Returns the exit code.
int profile_command(std::span<const std::string> arguments);

}  // namespace trainer
