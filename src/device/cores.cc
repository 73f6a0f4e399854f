#include "device/cores.h"

#include <fmt/core.h>
#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>

namespace trainer {

namespace {

struct CorePlace {
  size_t memory_node = 0;
  int physical_core = 0;  // the first of the cores that share its arithmetic
  int core = 0;
  auto operator<=>(const CorePlace&) const = default;
};

std::vector<int> read_core_list(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  std::getline(file, text);
  return parse_core_list(text);
}

}  // namespace

std::vector<int> parse_core_list(const std::string& text) {
  std::vector<int> cores;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    int first = 0, last = 0;
    const int found = std::sscanf(part.c_str(), "%d-%d", &first, &last);
    if (found < 1) continue;
    for (int core = first; core <= (found == 2 ? last : first); ++core) cores.push_back(core);
  }
  return cores;
}

std::vector<int> in_order_of_places(const std::vector<int>& cores, const std::string& system) {
  std::vector<std::vector<int>> nodes;
  for (const int node : read_core_list(system + "/node/online"))
    nodes.push_back(read_core_list(fmt::format("{}/node/node{}/cpulist", system, node)));
  std::vector<CorePlace> places;
  for (const int core : cores) {
    CorePlace place{.physical_core = core, .core = core};
    for (size_t node = 0; node < nodes.size(); ++node)
      if (std::find(nodes[node].begin(), nodes[node].end(), core) != nodes[node].end())
        place.memory_node = node;
    const auto siblings =
        read_core_list(fmt::format("{}/cpu/cpu{}/topology/thread_siblings_list", system, core));
    if (!siblings.empty()) place.physical_core = siblings.front();
    places.push_back(place);
  }
  std::sort(places.begin(), places.end());
  std::vector<int> ordered;
  for (const CorePlace& place : places) ordered.push_back(place.core);
  return ordered;
}

int allowed_core_count() {
  cpu_set_t set;
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

std::vector<int> allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (::sched_getaffinity(0, sizeof set, &set) == 0)
    for (int core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(core, &set)) cores.push_back(core);
  if (cores.empty()) cores.push_back(0);
  return in_order_of_places(cores);
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown processor";
}

std::vector<int> cores_of_local_rank(const std::vector<int>& cores, int local_rank, int local_size) {
  const int count = static_cast<int>(cores.size());
  if (local_size >= count) return {cores[static_cast<size_t>(local_rank % count)]};
  const int begin = local_rank * count / local_size, end = (local_rank + 1) * count / local_size;
  return {cores.begin() + begin, cores.begin() + end};
}

void bind_to_cores(const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int core : cores) CPU_SET(core, &set);
  ::sched_setaffinity(0, sizeof set, &set);
}

}  // namespace trainer
