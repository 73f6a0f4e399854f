// Which layer boundaries of a model are kept for the backward pass, where, and in which windows their bytes
// travel: solved once, stored as JSON, read by the layer_stream front end. After LazyTrain, section 4.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"

namespace trainer {

// Where a boundary stays between the forward and the backward pass.
enum class BoundaryHome : uint8_t { kRecomputed, kDevice, kHost, kStorage };
const char* name_of(BoundaryHome home);  // "recomputed", "device", "host", "storage"

// Bytes of one boundary that move while layer `window` computes; window [layers] is the head's.
struct WindowBytes {
  int window = 0;
  int64_t bytes = 0;
  bool operator==(const WindowBytes&) const = default;
};

// What is written moves in windows of the forward pass, in ascending order; what is read in windows of the
// backward pass, in descending order. Each list sums to the boundary's bytes, or is empty where the home
// needs none.
struct BoundaryPlacement {
  BoundaryHome home = BoundaryHome::kRecomputed;
  std::vector<WindowBytes> device_to_host, storage_write;
  std::vector<WindowBytes> storage_read, host_to_device;
  bool operator==(const BoundaryPlacement&) const = default;
};

// Boundary 0 is the input of the first block, boundary i the output of block i - 1; both ends stay on the
// device. Between two kept boundaries the others are recomputed before the backward pass gets there.
struct CheckpointSchedule {
  std::vector<BoundaryPlacement> boundaries;  // [layers + 1]

  int layers() const { return static_cast<int>(boundaries.size()) - 1; }
  bool kept(int boundary) const {
    return boundaries[static_cast<size_t>(boundary)].home != BoundaryHome::kRecomputed;
  }
  int count(BoundaryHome home) const;
  // Pairs (s, e) of kept boundaries with none between.
  std::vector<std::pair<int, int>> edges() const;
  bool operator==(const CheckpointSchedule&) const = default;
};

// Every `interval`-th boundary and the last one, all on the device.
CheckpointSchedule fixed_interval(int layers, int interval);

// What is structurally wrong with the schedule for boundaries of these bytes [layers + 1], one sentence each;
// empty: nothing. Windows and sums are held against what a step can do: a boundary leaves the device after it
// exists, goes on to storage and comes up from it a window later at the least, and is back before the
// recompute of its edge begins.
std::vector<std::string> structural_errors(const CheckpointSchedule& schedule,
                                           const std::vector<int64_t>& boundary_bytes);

Json to_json(const CheckpointSchedule& schedule);
// `where` heads every message. Throws InputError.
CheckpointSchedule checkpoint_schedule_from_json(const Json& json, const std::string& where);

}  // namespace trainer
