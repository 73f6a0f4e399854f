#include "device/cores.h"

#include <sched.h>

#include <algorithm>
#include <fstream>

namespace trainer {

std::vector<int> allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (::sched_getaffinity(0, sizeof set, &set) == 0)
    for (int core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(core, &set)) cores.push_back(core);
  if (cores.empty()) cores.push_back(0);
  return cores;
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
