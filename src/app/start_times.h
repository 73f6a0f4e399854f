// What a program did before its first step, and for how long.
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace trainer {

// Seconds since the kernel started this process, to a hundredth.
double seconds_of_process();

class StartTimes {
 public:
  // The first part, from the start of the process to here.
  explicit StartTimes(const std::string& name);
  // From the end of the part before to here.
  void part(const std::string& name);
  // Of all parts: since the start of the process.
  double seconds() const;
  // "ready after 1.42 s: program and MPI 0.20, weights 1.22"
  std::string describe() const;

 private:
  std::vector<std::pair<std::string, double>> parts_;  // name, seconds
  std::chrono::steady_clock::time_point end_;          // of the last part
};

}  // namespace trainer
