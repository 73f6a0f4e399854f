// What a cluster can do, as data: read from JSON (configs/platforms).
#pragma once

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/catalogue.h"
#include "base/json.h"

namespace trainer {

// Between two devices, or a device and its host or storage.
struct Link {
  double latency_seconds = 0;
  double bytes_per_second = 0;  // of one lane alone; 0: there is no such link
  std::string group;            // shares its bandwidth with the others of this name; empty: with none
  // Share of the device's compute that a transfer at full speed takes: cores that copy and add, not engines.
  double core_share = 0;
  double core_weight = 1;  // of that share against the device's compute, where both want more than there is
  // How much later a transfer leaves when its device computes all the while; not with a core_share.
  double core_wait_seconds = 0;
  bool operator==(const Link&) const = default;
};

enum class LinkUse : uint8_t {
  kBoundary,
  kCollective,
  kExchange,  // within the layers of a tensor-parallel group; as collectives where a platform does not say
  kHostToDevice,
  kDeviceToHost,
  kStorageRead,
  kStorageWrite
};
inline constexpr size_t kLinkUseCount = 7;
const char* name_of(LinkUse use);

// Links of one name that are one wire.
struct SharedLink {
  enum class Scope : uint8_t { kDevice, kNode, kPlatform };  // one wire each
  Scope scope = Scope::kDevice;
  double bytes_per_second = 0;
  bool operator==(const SharedLink&) const = default;
};

// By what a measured layer is found again.
struct LayerShape {
  std::string layer;  // "embedding", "block", "head"
  std::string precision;
  int64_t parameters = 0;
  int64_t activation_bytes = 0;  // handed on by the layer; of a head, what it hands back
  double forward_flops = 0;
  bool pipelined = false;  // between waits for the ranks of other stages, which cool caches and vector units
  auto operator<=>(const LayerShape&) const = default;
};
// `element_bytes`: of working weights. Layers that differ in their number alone have one shape.
LayerShape shape_of(const LayerCatalogue& layer, int64_t element_bytes, bool pipelined);
// "fp32", "bf16" for 4 and 2 bytes.
std::string precision_of(int64_t element_bytes);

// Seconds of one layer and micro-batch on one device; below 0: not measured.
struct MeasuredLayer {
  LayerShape shape;
  double forward_seconds = -1, backward_seconds = -1;
  // Where gradients are written instead of added to: of a step's first micro-batch.
  double first_forward_seconds = -1, first_backward_seconds = -1;
  // The four where Recover stands before the backward: forward keeps nothing, and backward finds what it
  // needs in the caches.
  double recovered_forward_seconds = -1, recovered_backward_seconds = -1;
  double first_recovered_forward_seconds = -1, first_recovered_backward_seconds = -1;
  double recover_seconds = -1;  // everything its backward needs
  // All its parameters: optimizer, working weights from the master copy, squares of the gradient.
  double update_seconds = -1, refresh_seconds = -1, norm_seconds = -1;
  bool operator==(const MeasuredLayer&) const = default;
};

// How evenly a machine works: by rank, how long consecutive pieces of work took against what its kind takes,
// all ranks at the same time.
struct Pace {
  double piece_seconds = 0;                // of work at an even pace
  std::vector<std::vector<double>> ranks;  // of one length; empty: even
  bool operator==(const Pace&) const = default;
};

struct Platform {
  std::string name, source;
  int devices_per_node = 1;

  // One device.
  std::string device_source;
  int64_t memory_bytes = 0;
  // Matrix products by precision. A multiply-add counts as one operation where `counts_multiply_adds`, else
  // as two.
  std::map<std::string, double> matmul_per_second;
  bool counts_multiply_adds = false;
  double memory_bytes_per_second = 0;
  std::string memory_group;  // of the shared links: devices that slow each other down in memory
  // Share of the matmul rate that layers reach, and of the memory bandwidth that all else reaches.
  double forward_efficiency = 1, backward_efficiency = 1, recover_efficiency = 1, memory_efficiency = 1;
  // Whether products hide the memory traffic of the same task: it takes the longer of the two, else their
  // sum.
  bool memory_overlaps_products = true;
  double task_overhead_seconds = 0;  // of every task on the compute lane

  int64_t host_memory_bytes = 0;            // of a node
  double host_memory_bytes_per_second = 0;  // likewise

  struct LinkPair {
    Link within_node, across_nodes;
    std::string source;
    bool operator==(const LinkPair&) const = default;
  };
  std::array<LinkPair, kLinkUseCount> links;  // by LinkUse; those to host and storage only within_node
  std::map<std::string, SharedLink> shared_links;

  std::string collective_algorithm = "direct";
  // Network contention: a collective of n devices has 1 / (1 + this * (n - 1)) of its link's rate.
  double collective_slowdown_per_device = 0;
  // An assumption: recovery runs beside the main path, on units that the main path does not use.
  bool recovery_has_its_own_lane = false;

  std::vector<MeasuredLayer> measured;
  Pace pace;

  const LinkPair& link(LinkUse use) const { return links[static_cast<size_t>(use)]; }
  // Transfers want compute of their devices (Link::core_share, Link::core_wait_seconds).
  bool shares_cores() const;
  // Null: not measured. Where only the other value of `pipelined` was, that entry.
  const MeasuredLayer* measurement(const LayerShape& shape) const;
  // Floating-point operations per second, a multiply-add being two. Throws InputError when the platform does
  // not say.
  double flops_per_second(const std::string& precision) const;
  bool operator==(const Platform&) const = default;
};

// "direct", "ring", "tree", "hierarchical".
std::vector<std::string> collective_algorithms();

// Strict: keys that are not known, missing, of the wrong type or out of range are refused with their place.
// Throws InputError.
Platform parse_platform(std::string_view text, const std::string& file);
// A file, or the name of one in `folder` without ".json"; a relative folder as find_resource finds it.
Platform read_platform(const std::string& file_or_name, const std::string& folder = "configs/platforms");
Json platform_to_json(const Platform& platform);

}  // namespace trainer
