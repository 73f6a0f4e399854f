#include "schedule/checkpoint_schedule.h"

#include <algorithm>
#include <map>

#include "base/error.h"

namespace trainer {
namespace {

constexpr int64_t kFormatVersion = 1;
constexpr const char* kFormat = "checkpoint schedule";

using TransferList = std::vector<WindowBytes> BoundaryPlacement::*;
constexpr std::pair<const char*, TransferList> kTransferLists[] = {
    {"device_to_host", &BoundaryPlacement::device_to_host},
    {"storage_write", &BoundaryPlacement::storage_write},
    {"storage_read", &BoundaryPlacement::storage_read},
    {"host_to_device", &BoundaryPlacement::host_to_device}};

BoundaryHome home_from(const std::string& name, const std::string& where) {
  std::vector<std::string> names;
  for (auto home :
       {BoundaryHome::kRecomputed, BoundaryHome::kDevice, BoundaryHome::kHost, BoundaryHome::kStorage}) {
    if (name == name_of(home)) return home;
    names.push_back(name_of(home));
  }
  const std::string near = nearest_name(name, names);
  input_error("{}: key 'home': there is no home '{}'{}", where, name,
              near.empty() ? std::string() : fmt::format("; did you mean '{}'?", near));
}

const Json& array_at(const Json& object, const char* key, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array()) input_error("{}: key '{}' must be a list", where, key);
  return *found;
}

std::vector<WindowBytes> transfers_from(const Json& list, const std::string& where) {
  std::vector<WindowBytes> transfers;
  if (!list.is_array()) input_error("{} must be a list of [window, bytes]", where);
  for (const Json& pair : list) {
    const bool is_pair = pair.is_array() && pair.size() == 2;
    const int64_t window = is_pair ? exact_integer(pair[0]).value_or(-1) : -1;
    const int64_t bytes = is_pair ? exact_integer(pair[1]).value_or(0) : 0;
    if (window < 0 || window > INT16_MAX || bytes <= 0)
      input_error("{}: expected [window, bytes] with bytes above 0, found {}", where, pair.dump());
    transfers.push_back({static_cast<int>(window), bytes});
  }
  return transfers;
}

// Sums up what has moved when the pass has gone through `window`; forward windows ascend, backward descend.
int64_t moved(const std::vector<WindowBytes>& list, int window, bool forward) {
  int64_t sum = 0;
  for (const WindowBytes& piece : list)
    if (forward ? piece.window <= window : piece.window >= window) sum += piece.bytes;
  return sum;
}

class StructureCheck {
 public:
  StructureCheck(const CheckpointSchedule& schedule, const std::vector<int64_t>& bytes)
      : schedule_(schedule), bytes_(bytes) {}

  std::vector<std::string> run() {
    const int layers = schedule_.layers();
    if (layers < 1 || bytes_.size() != schedule_.boundaries.size()) {
      error("the schedule has {} boundaries, the model {}", schedule_.boundaries.size(), bytes_.size());
      return errors_;
    }
    for (int end : {0, layers})
      if (schedule_.boundaries[static_cast<size_t>(end)].home != BoundaryHome::kDevice)
        error("boundary {} must stay on the device", end);
    if (!errors_.empty()) return errors_;
    for (const auto& [begin, end] : schedule_.edges()) boundary(begin, end);
    for (int i = 1; i < layers; ++i)
      if (!schedule_.kept(i)) empty_but(i, {});
    empty_but(layers, {});
    return errors_;
  }

 private:
  template <class... Args>
  void error(fmt::format_string<Args...> format, Args&&... args) {
    errors_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  void empty_but(int i, std::vector<TransferList> allowed) {
    for (const auto& [name, list] : kTransferLists)
      if (std::find(allowed.begin(), allowed.end(), list) == allowed.end() &&
          !(schedule_.boundaries[static_cast<size_t>(i)].*list).empty())
        error("boundary {} ({}) needs no {}", i, name_of(schedule_.boundaries[static_cast<size_t>(i)].home),
              name);
  }

  // `first`..`last` are the windows in the order in which the pass meets them.
  void windows(int i, const char* name, const std::vector<WindowBytes>& list, int first, int last) {
    const bool forward = first <= last;
    int64_t sum = 0;
    for (size_t k = 0; k < list.size(); ++k) {
      sum += list[k].bytes;
      const int w = list[k].window;
      if (forward ? w < first || w > last : w > first || w < last)
        error("boundary {}: {} in window {}, outside {} to {}", i, name, w, first, last);
      if (k > 0 && (forward ? w <= list[k - 1].window : w >= list[k - 1].window))
        error("boundary {}: {} windows out of order at {}", i, name, w);
    }
    if (sum != bytes_[static_cast<size_t>(i)])
      error("boundary {}: {} moves {} of {} bytes", i, name, sum, bytes_[static_cast<size_t>(i)]);
  }

  // The boundary that begins edge (i, end).
  void boundary(int i, int end) {
    const BoundaryPlacement& b = schedule_.boundaries[static_cast<size_t>(i)];
    if (b.home == BoundaryHome::kDevice) return empty_but(i, {});
    const int layers = schedule_.layers();
    windows(i, "device_to_host", b.device_to_host, i, layers - 1);
    windows(i, "host_to_device", b.host_to_device, layers, end);
    if (b.home == BoundaryHome::kHost)
      return empty_but(i, {&BoundaryPlacement::device_to_host, &BoundaryPlacement::host_to_device});
    windows(i, "storage_write", b.storage_write, i, layers - 1);
    windows(i, "storage_read", b.storage_read, layers, end);
    for (const WindowBytes& piece : b.storage_write)
      if (moved(b.storage_write, piece.window, true) > moved(b.device_to_host, piece.window - 1, true))
        error("boundary {}: storage_write is ahead of device_to_host in window {}", i, piece.window);
    for (const WindowBytes& piece : b.host_to_device)
      if (moved(b.host_to_device, piece.window, false) > moved(b.storage_read, piece.window + 1, false))
        error("boundary {}: host_to_device is ahead of storage_read in window {}", i, piece.window);
  }

  const CheckpointSchedule& schedule_;
  const std::vector<int64_t>& bytes_;
  std::vector<std::string> errors_;
};

}  // namespace

const char* name_of(BoundaryHome home) {
  static constexpr const char* kNames[] = {"recomputed", "device", "host", "storage"};
  return kNames[static_cast<size_t>(home)];
}

int CheckpointSchedule::count(BoundaryHome home) const {
  return static_cast<int>(std::count_if(boundaries.begin(), boundaries.end(),
                                        [&](const BoundaryPlacement& b) { return b.home == home; }));
}

std::vector<std::pair<int, int>> CheckpointSchedule::edges() const {
  std::vector<std::pair<int, int>> result;
  int begin = 0;
  for (int i = 1; i <= layers(); ++i)
    if (kept(i)) {
      result.emplace_back(begin, i);
      begin = i;
    }
  return result;
}

CheckpointSchedule fixed_interval(int layers, int interval) {
  require(layers >= 1 && interval >= 1, "{} layers at interval {}", layers, interval);
  CheckpointSchedule schedule;
  schedule.boundaries.resize(static_cast<size_t>(layers) + 1);
  for (int i = 0; i <= layers; ++i)
    if (i % interval == 0 || i == layers)
      schedule.boundaries[static_cast<size_t>(i)].home = BoundaryHome::kDevice;
  return schedule;
}

std::vector<std::string> structural_errors(const CheckpointSchedule& schedule,
                                           const std::vector<int64_t>& boundary_bytes) {
  return StructureCheck(schedule, boundary_bytes).run();
}

Json to_json(const CheckpointSchedule& schedule) {
  Json boundaries = Json::array(), edges = Json::array();
  for (int i = 0; i <= schedule.layers(); ++i) {
    const BoundaryPlacement& b = schedule.boundaries[static_cast<size_t>(i)];
    Json entry = {{"boundary", i}, {"home", name_of(b.home)}};
    for (const auto& [name, list] : kTransferLists) {
      if ((b.*list).empty()) continue;
      Json pieces = Json::array();
      for (const WindowBytes& piece : b.*list) pieces.push_back({piece.window, piece.bytes});
      entry[name] = std::move(pieces);
    }
    boundaries.push_back(std::move(entry));
  }
  for (const auto& [begin, end] : schedule.edges()) edges.push_back({begin, end});
  return {{"format", kFormat},
          {"version", kFormatVersion},
          {"layers", schedule.layers()},
          {"edges", std::move(edges)},
          {"boundaries", std::move(boundaries)}};
}

CheckpointSchedule checkpoint_schedule_from_json(const Json& json, const std::string& where) {
  if (!json.is_object() || json_string(json, "format", where, "") != kFormat)
    input_error("{}: this is not a {}: key 'format' must say so", where, kFormat);
  if (const int64_t version = json_integer(json, "version", where); version != kFormatVersion)
    input_error("{}: key 'version': this program reads version {}, found {}", where, kFormatVersion, version);
  const Json& boundaries = array_at(json, "boundaries", where);
  const int64_t layers = json_integer(json, "layers", where);
  if (layers < 1 || boundaries.size() != static_cast<size_t>(layers) + 1)
    input_error("{}: {} boundaries for {} layers; there must be one more than layers", where,
                boundaries.size(), layers);
  CheckpointSchedule schedule;
  for (size_t i = 0; i < boundaries.size(); ++i) {
    const Json& entry = boundaries[i];
    const std::string at = fmt::format("{}: key 'boundaries[{}]'", where, i);
    if (!entry.is_object() || json_integer(entry, "boundary", at) != static_cast<int64_t>(i))
      input_error("{}: boundaries must stand in order from 0", at);
    BoundaryPlacement b;
    b.home = home_from(json_string(entry, "home", at), at);
    for (const auto& [name, list] : kTransferLists)
      if (const auto found = entry.find(name); found != entry.end())
        b.*list = transfers_from(*found, fmt::format("{}: key '{}'", at, name));
    schedule.boundaries.push_back(std::move(b));
  }
  Json edges = Json::array();
  for (const auto& [begin, end] : schedule.edges()) edges.push_back({begin, end});
  if (array_at(json, "edges", where) != edges)
    input_error("{}: key 'edges' does not list the kept boundaries in order; expected {}", where,
                edges.dump());
  return schedule;
}

}  // namespace trainer
