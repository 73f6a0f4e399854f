#include "app/start_times.h"

#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>

namespace trainer {

double seconds_of_process() {
  // Field 22 of the line: ticks from the start of the machine. Fields are counted behind the name, which may
  // hold anything.
  std::ifstream file("/proc/self/stat");
  const std::string line((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::istringstream fields(line.substr(std::min(line.size(), line.rfind(')') + 1)));
  std::string field;
  for (int number = 3; number <= 22; ++number) fields >> field;
  const double start = std::strtod(field.c_str(), nullptr) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return std::max(0.0, static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) - start);
}

StartTimes::StartTimes(const std::string& name) : end_(std::chrono::steady_clock::now()) {
  parts_.emplace_back(name, seconds_of_process());
}

void StartTimes::part(const std::string& name) {
  const auto now = std::chrono::steady_clock::now();
  parts_.emplace_back(name, std::chrono::duration<double>(now - end_).count());
  end_ = now;
}

double StartTimes::seconds() const {
  double sum = 0;
  for (const auto& [name, seconds] : parts_) sum += seconds;
  return sum;
}

std::string StartTimes::describe() const {
  std::string text = fmt::format("ready after {:.2f} s", seconds());
  for (const auto& [name, seconds] : parts_)
    text += fmt::format("{} {} {:.2f}", &name == &parts_.front().first ? ":" : ",", name, seconds);
  return text;
}

}  // namespace trainer
