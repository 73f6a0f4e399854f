// Training runs of this program as processes of their own, and what the simulator says of them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "sim/platform.h"

namespace trainer {

// How ranks are started.
struct Launch {
  int ranks = 1;
  std::string slow_link;  // rate of the link between the ranks, as tools/slow_link.sh takes it; empty: memory
};

class MachineRuns {
 public:
  // `work`: a folder for configs, runs and logs. `config`: JSON, without run.directory.
  MachineRuns(std::filesystem::path work, const std::string& config);

  // Whether ranks can be started like this here; otherwise `why` says why not.
  bool possible(const Launch& launch, std::string& why) const;
  // `trainer profile` with these micro-batch sizes. Throws RunError with the end of the log.
  Platform profile(const Launch& launch, const std::vector<int>& micro_batches, int steps);
  // Runs a plan, the config with these keys changed. Returns the median of the steps' seconds after
  // `warm_up` steps.
  double measure(const Launch& launch, const std::vector<std::string>& settings, int steps, int warm_up);
  double predict(const Launch& launch, const std::vector<std::string>& settings,
                 const Platform& platform) const;

 private:
  int start(const Launch& launch, const std::vector<std::string>& words) const;
  void must_succeed(const Launch& launch, const std::vector<std::string>& words) const;

  std::filesystem::path work_, config_, log_, program_, slow_link_;
};

// The median of "step_seconds" in a run's metrics.jsonl, without the first `warm_up` steps. Throws RunError
// when there are none.
double median_step_seconds(const std::filesystem::path& metrics, int warm_up);

}  // namespace trainer
