#include "sim/platform.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/file.h"

namespace trainer {
namespace {

constexpr std::pair<const char*, double MeasuredLayer::*> kMeasuredSeconds[] = {
    {"forward_seconds", &MeasuredLayer::forward_seconds},
    {"first_forward_seconds", &MeasuredLayer::first_forward_seconds},
    {"backward_seconds", &MeasuredLayer::backward_seconds},
    {"first_backward_seconds", &MeasuredLayer::first_backward_seconds},
    {"recovered_forward_seconds", &MeasuredLayer::recovered_forward_seconds},
    {"recovered_backward_seconds", &MeasuredLayer::recovered_backward_seconds},
    {"first_recovered_forward_seconds", &MeasuredLayer::first_recovered_forward_seconds},
    {"first_recovered_backward_seconds", &MeasuredLayer::first_recovered_backward_seconds},
    {"recover_seconds", &MeasuredLayer::recover_seconds},
    {"update_seconds", &MeasuredLayer::update_seconds},
    {"refresh_seconds", &MeasuredLayer::refresh_seconds},
    {"norm_seconds", &MeasuredLayer::norm_seconds},
};

constexpr std::array<const char*, 3> kScopes = {"device", "node", "platform"};

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// One object of the file. Keys are known once they have been asked for; `finish` refuses the others.
class ObjectReader {
 public:
  ObjectReader(const Json& object, const std::string& file, const std::string& path)
      : object_(object), file_(file), path_(path) {
    if (!object.is_object())
      input_error("{}: key '{}': expected an object, found {}", file, path, object.dump());
  }

  bool has(const std::string& key) {
    known_.push_back(key);
    const auto it = object_.find(key);
    return it != object_.end() && !it->is_null();
  }
  std::string text(const std::string& key, const std::string& fallback) {
    return has(key) ? json_string(object_, key, place()) : fallback;
  }
  std::string word(const std::string& key, const std::vector<std::string>& allowed) {
    need(key);
    const std::string value = json_string(object_, key, place());
    if (std::find(allowed.begin(), allowed.end(), value) != allowed.end()) return value;
    const std::string near = nearest_name(value, allowed);
    input_error("{}: key '{}': expected one of {}, found '{}'{}", file_, full(key), joined(allowed), value,
                near.empty() ? "" : "; did you mean '" + near + "'?");
  }
  bool boolean(const std::string& key, bool fallback) {
    return has(key) ? json_bool(object_, key, place(), fallback) : fallback;
  }
  double number(const std::string& key, double least, double most = INFINITY) {
    need(key);
    const double value = json_number(object_, key, place());
    if (!(value >= least && value <= most)) refuse_range(key, least, most, value);
    return value;
  }
  double number_or(const std::string& key, double fallback, double least, double most = INFINITY) {
    return has(key) ? number(key, least, most) : fallback;
  }
  // Above 0.
  double rate(const std::string& key) {
    const double value = number(key, 0);
    if (value == 0) input_error("{}: key '{}': expected a number above 0, found 0", file_, full(key));
    return value;
  }
  int64_t integer(const std::string& key, int64_t least) {
    need(key);
    const int64_t value = json_integer(object_, key, place());
    if (value < least)
      input_error("{}: key '{}': expected an integer of at least {}, found {}", file_, full(key), least,
                  value);
    return value;
  }
  ObjectReader object(const std::string& key) {
    need(key);
    return {object_.at(key), file_, full(key)};
  }
  const Json& raw(const std::string& key) const { return object_.at(key); }
  std::vector<std::string> keys() const {
    std::vector<std::string> names;
    for (const auto& [key, value] : object_.items()) names.push_back(key);
    return names;
  }
  std::string full(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }

  void finish() const {
    for (const auto& key : keys()) {
      if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
      const std::string near = nearest_name(key, known_);
      input_error(
          "{}: unknown key '{}'; {}", file_, full(key),
          near.empty() ? "keys there are: " + joined(known_) : fmt::format("did you mean '{}'?", full(near)));
    }
  }

 private:
  void need(const std::string& key) {
    if (!has(key)) input_error("{}: key '{}' is missing", file_, full(key));
  }
  std::string place() const { return path_.empty() ? file_ : file_ + ": in '" + path_ + "'"; }
  [[noreturn]] void refuse_range(const std::string& key, double least, double most, double value) const {
    input_error(
        "{}: key '{}': expected a number {}, found {}", file_, full(key),
        std::isinf(most) ? fmt::format("of at least {}", least) : fmt::format("from {} to {}", least, most),
        value);
  }

  const Json& object_;
  std::string file_, path_;
  std::vector<std::string> known_;
};

Link read_link(ObjectReader reader) {
  Link link;
  link.latency_seconds = reader.number_or("latency_seconds", 0, 0);
  link.bytes_per_second = reader.rate("bytes_per_second");
  link.group = reader.text("group", "");
  link.core_share = reader.number_or("core_share", 0, 0, 1);
  constexpr double kLeastWeight = 1e-6;
  link.core_weight = reader.number_or("core_weight", 1, kLeastWeight);
  link.core_wait_seconds = reader.number_or("core_wait_seconds", 0, 0);
  reader.finish();
  return link;
}

void read_device(ObjectReader reader, Platform& p, const std::string& file) {
  p.device_source = reader.text("source", "");
  p.memory_bytes = reader.integer("memory_bytes", 1);
  p.counts_multiply_adds = reader.has("matmul_macs_per_second");
  if (reader.has("matmul_flops_per_second") == p.counts_multiply_adds)
    input_error(
        "{}: give exactly one of the keys 'device.matmul_flops_per_second' and "
        "'device.matmul_macs_per_second' (a multiply-add counted as one)",
        file);
  ObjectReader rates =
      reader.object(p.counts_multiply_adds ? "matmul_macs_per_second" : "matmul_flops_per_second");
  for (const char* precision : {"fp32", "bf16"})
    if (rates.has(precision)) p.matmul_per_second[precision] = rates.rate(precision);
  rates.finish();
  p.memory_bytes_per_second = reader.rate("memory_bytes_per_second");
  p.memory_group = reader.text("memory_group", "");
  if (reader.has("efficiency")) {
    ObjectReader e = reader.object("efficiency");
    constexpr double kLeast = 1e-6;
    p.forward_efficiency = e.number_or("forward", 1, kLeast, 1);
    p.backward_efficiency = e.number_or("backward", p.forward_efficiency, kLeast, 1);
    p.recover_efficiency = e.number_or("recover", p.forward_efficiency, kLeast, 1);
    p.memory_efficiency = e.number_or("memory", 1, kLeast, 1);
    e.finish();
  }
  p.memory_overlaps_products = reader.boolean("memory_overlaps_products", true);
  p.task_overhead_seconds = reader.number_or("task_overhead_seconds", 0, 0);
  reader.finish();
}

void read_links(ObjectReader reader, Platform& p) {
  for (size_t i = 0; i < kLinkUseCount; ++i) {
    const std::string name = name_of(static_cast<LinkUse>(i));
    if (!reader.has(name)) continue;
    ObjectReader pair = reader.object(name);
    Platform::LinkPair& link = p.links[i];
    link.source = pair.text("source", "");
    if (pair.has("within_node")) link.within_node = read_link(pair.object("within_node"));
    if (i <= static_cast<size_t>(LinkUse::kExchange) && pair.has("across_nodes"))
      link.across_nodes = read_link(pair.object("across_nodes"));
    pair.finish();
  }
  reader.finish();
}

MeasuredLayer read_measured(ObjectReader reader, const std::string& file) {
  MeasuredLayer m;
  m.shape.layer = reader.word("layer", {"embedding", "block", "head"});
  m.shape.precision = reader.word("precision", {"fp32", "bf16"});
  m.shape.parameters = reader.integer("parameters", 0);
  m.shape.activation_bytes = reader.integer("activation_bytes", 0);
  m.shape.forward_flops = reader.number("forward_flops", 0);
  m.shape.pipelined = reader.boolean("pipelined", false);
  m.forward_seconds = reader.number_or("forward_seconds", -1, 0);
  m.backward_seconds = reader.number_or("backward_seconds", -1, 0);
  bool any = false;
  for (const auto& [key, seconds] : kMeasuredSeconds) {
    m.*seconds = reader.number_or(key, -1, 0);
    any = any || m.*seconds >= 0;
  }
  reader.finish();
  if (!any) input_error("{}: key '{}' holds no seconds", file, reader.full(""));
  return m;
}

Pace read_pace(ObjectReader reader, const std::string& file) {
  Pace pace;
  pace.piece_seconds = reader.rate("piece_seconds");
  if (!reader.has("ranks")) input_error("{}: key '{}' is missing", file, reader.full("ranks"));
  const Json& ranks = reader.raw("ranks");
  const auto refuse = [&] {
    input_error("{}: key '{}': expected lists of one length, of numbers above 0, one for each rank", file,
                reader.full("ranks"));
  };
  if (!ranks.is_array() || ranks.empty()) refuse();
  for (const Json& rank : ranks) {
    if (!rank.is_array() || rank.empty() || rank.size() != ranks.front().size()) refuse();
    std::vector<double>& pieces = pace.ranks.emplace_back();
    for (const Json& piece : rank) {
      if (!piece.is_number() || !(piece.get<double>() > 0)) refuse();
      pieces.push_back(piece.get<double>());
    }
  }
  reader.finish();
  return pace;
}

void check_groups(const Platform& p, const std::string& file) {
  std::vector<std::string> names;
  for (const auto& [name, shared] : p.shared_links) names.push_back(name);
  const auto check = [&](const std::string& group, const std::string& key) {
    if (group.empty() || p.shared_links.count(group)) return;
    const std::string near = nearest_name(group, names);
    input_error("{}: key '{}': there is no '{}' in 'shared_links'{}", file, key, group,
                near.empty() ? "" : "; did you mean '" + near + "'?");
  };
  check(p.memory_group, "device.memory_group");
  for (size_t i = 0; i < kLinkUseCount; ++i)
    for (const auto& [link, name] : {std::pair(&p.links[i].within_node, "within_node"),
                                     std::pair(&p.links[i].across_nodes, "across_nodes")}) {
      const std::string key = fmt::format("links.{}.{}", name_of(static_cast<LinkUse>(i)), name);
      check(link->group, key + ".group");
      if (p.shares_cores() && !link->group.empty())
        input_error(
            "{}: key '{}.group' does not go with links that have a 'core_share' or 'core_wait_seconds'", file,
            key);
      if (link->core_share > 0 && link->core_wait_seconds > 0)
        input_error("{}: key '{}.core_wait_seconds' does not go with a 'core_share'", file, key);
    }
  if (p.shares_cores() && !p.memory_group.empty())
    input_error(
        "{}: key 'device.memory_group' does not go with links that have a 'core_share' or "
        "'core_wait_seconds'",
        file);
}

Json link_to_json(const Link& link) {
  Json json = {{"latency_seconds", link.latency_seconds}, {"bytes_per_second", link.bytes_per_second}};
  if (!link.group.empty()) json["group"] = link.group;
  if (link.core_share > 0) json["core_share"] = link.core_share;
  if (link.core_weight != 1) json["core_weight"] = link.core_weight;
  if (link.core_wait_seconds > 0) json["core_wait_seconds"] = link.core_wait_seconds;
  return json;
}

std::string file_of_name(const std::string& name, const std::string& folder) {
  const std::filesystem::path found =
      std::filesystem::path(folder).is_absolute() ? std::filesystem::path(folder) : find_resource(folder);
  if (!std::filesystem::is_directory(found))
    input_error("platform '{}': there is no folder {} here or beside the program; give the platform's file",
                name, folder);
  const std::filesystem::path file = found / (name + ".json");
  if (std::filesystem::exists(file)) return file.string();
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(found))
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  const std::string near = nearest_name(name, names);
  input_error("there is no platform '{}' in {}{}; there are {}", name, found.string(),
              near.empty() ? "" : "; did you mean '" + near + "'?", fmt::join(names, ", "));
}

}  // namespace

const char* name_of(LinkUse use) {
  static constexpr const char* kNames[] = {"boundary",       "collective",   "exchange",     "host_to_device",
                                           "device_to_host", "storage_read", "storage_write"};
  return kNames[static_cast<size_t>(use)];
}

std::vector<std::string> collective_algorithms() { return {"direct", "ring", "tree", "hierarchical"}; }

std::string precision_of(int64_t element_bytes) { return element_bytes == 4 ? "fp32" : "bf16"; }

LayerShape shape_of(const LayerCatalogue& layer, int64_t element_bytes, bool pipelined) {
  LayerShape shape;
  shape.layer = layer.output_bytes == 0 ? "head" : layer.gradient_bytes == 0 ? "embedding" : "block";
  shape.precision = precision_of(element_bytes);
  shape.parameters = layer.parameters;
  shape.activation_bytes = std::max(layer.output_bytes, layer.gradient_bytes);
  shape.forward_flops = layer.forward_flops;
  shape.pipelined = pipelined;
  return shape;
}

bool Platform::shares_cores() const {
  const auto wants = [](const Link& link) { return link.core_share > 0 || link.core_wait_seconds > 0; };
  return std::any_of(links.begin(), links.end(), [&](const LinkPair& pair) {
    return wants(pair.within_node) || wants(pair.across_nodes);
  });
}

const MeasuredLayer* Platform::measurement(const LayerShape& shape) const {
  const auto find = [&](const LayerShape& wanted) -> const MeasuredLayer* {
    for (const MeasuredLayer& m : measured)
      if (m.shape == wanted) return &m;
    return nullptr;
  };
  if (const MeasuredLayer* m = find(shape)) return m;
  LayerShape other = shape;
  other.pipelined = !shape.pipelined;
  return find(other);
}

double Platform::flops_per_second(const std::string& precision) const {
  const auto it = matmul_per_second.find(precision);
  if (it == matmul_per_second.end())
    input_error(
        "platform '{}' has no matmul rate for {}; add it to 'device.matmul_{}_per_second' or measure its "
        "layers",
        name, precision, counts_multiply_adds ? "macs" : "flops");
  return it->second * (counts_multiply_adds ? 2 : 1);
}

Platform parse_platform(std::string_view text, const std::string& file) {
  const Json root = parse_json(text, file);
  ObjectReader reader(root, file, "");
  Platform p;
  reader.has("$schema");
  p.name = reader.text("name", "");
  p.source = reader.text("source", "");
  p.devices_per_node = static_cast<int>(std::min<int64_t>(reader.integer("devices_per_node", 1), 1 << 20));
  read_device(reader.object("device"), p, file);
  if (reader.has("host")) {
    ObjectReader host = reader.object("host");
    p.host_memory_bytes = host.integer("memory_bytes", 1);
    if (host.has("memory_bytes_per_second"))
      p.host_memory_bytes_per_second = host.rate("memory_bytes_per_second");
    host.finish();
  }
  if (reader.has("links")) read_links(reader.object("links"), p);
  if (reader.has("shared_links")) {
    ObjectReader shared = reader.object("shared_links");
    for (const auto& name : shared.keys()) {
      ObjectReader link = shared.object(name);
      const std::string scope = link.word("one_per", {kScopes.begin(), kScopes.end()});
      SharedLink& s = p.shared_links[name];
      s.scope =
          static_cast<SharedLink::Scope>(std::find(kScopes.begin(), kScopes.end(), scope) - kScopes.begin());
      s.bytes_per_second = link.rate("bytes_per_second");
      link.finish();
    }
  }
  if (reader.has("collective_algorithm"))
    p.collective_algorithm = reader.word("collective_algorithm", collective_algorithms());
  if (reader.has("contention")) {
    ObjectReader contention = reader.object("contention");
    p.collective_slowdown_per_device = contention.number_or("collective_slowdown_per_device", 0, 0);
    contention.finish();
  }
  if (reader.has("assumptions")) {
    ObjectReader assumptions = reader.object("assumptions");
    p.recovery_has_its_own_lane = assumptions.boolean("recovery_has_its_own_lane", false);
    assumptions.finish();
  }
  if (reader.has("measured")) {
    const Json& list = reader.raw("measured");
    if (!list.is_array()) input_error("{}: key 'measured': expected a list, found {}", file, list.dump());
    for (size_t i = 0; i < list.size(); ++i) {
      p.measured.push_back(read_measured({list[i], file, fmt::format("measured[{}]", i)}, file));
      for (size_t k = 0; k < i; ++k)
        if (p.measured[k].shape == p.measured[i].shape)
          input_error("{}: 'measured[{}]' and 'measured[{}]' are of the same layer; remove one", file, k, i);
    }
  }
  if (reader.has("pace")) p.pace = read_pace(reader.object("pace"), file);
  reader.finish();
  check_groups(p, file);
  return p;
}

Platform read_platform(const std::string& file_or_name, const std::string& folder) {
  const bool is_file = file_or_name.find('/') != std::string::npos || file_or_name.ends_with(".json");
  const std::string file = is_file ? file_or_name : file_of_name(file_or_name, folder);
  Platform p = parse_platform(read_file(file), file);
  if (p.name.empty()) p.name = file_or_name;
  return p;
}

Json platform_to_json(const Platform& p) {
  Json root;
  root["name"] = p.name;
  if (!p.source.empty()) root["source"] = p.source;
  root["devices_per_node"] = p.devices_per_node;
  Json& device = root["device"];
  if (!p.device_source.empty()) device["source"] = p.device_source;
  device["memory_bytes"] = p.memory_bytes;
  Json& rates = device[p.counts_multiply_adds ? "matmul_macs_per_second" : "matmul_flops_per_second"];
  rates = Json::object();
  for (const auto& [precision, rate] : p.matmul_per_second) rates[precision] = rate;
  device["memory_bytes_per_second"] = p.memory_bytes_per_second;
  if (!p.memory_group.empty()) device["memory_group"] = p.memory_group;
  device["efficiency"] = {{"forward", p.forward_efficiency},
                          {"backward", p.backward_efficiency},
                          {"recover", p.recover_efficiency},
                          {"memory", p.memory_efficiency}};
  if (!p.memory_overlaps_products) device["memory_overlaps_products"] = false;
  device["task_overhead_seconds"] = p.task_overhead_seconds;
  if (p.host_memory_bytes > 0) {
    root["host"]["memory_bytes"] = p.host_memory_bytes;
    if (p.host_memory_bytes_per_second > 0)
      root["host"]["memory_bytes_per_second"] = p.host_memory_bytes_per_second;
  }
  for (size_t i = 0; i < kLinkUseCount; ++i) {
    const auto& pair = p.links[i];
    if (pair == Platform::LinkPair{}) continue;
    Json& link = root["links"][name_of(static_cast<LinkUse>(i))];
    if (!pair.source.empty()) link["source"] = pair.source;
    if (pair.within_node.bytes_per_second > 0) link["within_node"] = link_to_json(pair.within_node);
    if (pair.across_nodes.bytes_per_second > 0) link["across_nodes"] = link_to_json(pair.across_nodes);
  }
  for (const auto& [name, shared] : p.shared_links)
    root["shared_links"][name] = {{"one_per", kScopes[static_cast<size_t>(shared.scope)]},
                                  {"bytes_per_second", shared.bytes_per_second}};
  root["collective_algorithm"] = p.collective_algorithm;
  root["contention"]["collective_slowdown_per_device"] = p.collective_slowdown_per_device;
  root["assumptions"]["recovery_has_its_own_lane"] = p.recovery_has_its_own_lane;
  for (const MeasuredLayer& m : p.measured) {
    Json entry = {{"layer", m.shape.layer},
                  {"precision", m.shape.precision},
                  {"parameters", m.shape.parameters},
                  {"activation_bytes", m.shape.activation_bytes},
                  {"forward_flops", m.shape.forward_flops}};
    if (m.shape.pipelined) entry["pipelined"] = true;
    for (const auto& [key, seconds] : kMeasuredSeconds)
      if (m.*seconds >= 0) entry[key] = m.*seconds;
    root["measured"].push_back(entry);
  }
  if (!p.pace.ranks.empty())
    root["pace"] = {{"piece_seconds", p.pace.piece_seconds}, {"ranks", p.pace.ranks}};
  return root;
}

}  // namespace trainer
