// Checks of predictions (`trainer profile --check`) as jobs of their own, with any number of ranks and any link.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace trainer {

// How ranks are started.
struct Launch {
  int ranks = 1;
  std::string slow_link;  // rate of the link between the ranks, as tools/slow_link.sh takes it; empty: memory
};

// What `trainer profile --check` says of a plan.
struct PlanRun {
  double step_seconds = 0;  // measured
  double error = 0;         // of the predicted step, over the measured one
};

class MachineRuns {
 public:
  // `work`: a folder for configs, runs and logs. `config`: JSON, without run.directory.
  MachineRuns(std::filesystem::path work, const std::string& config);

  // Whether ranks can be started like this here; otherwise `why` says why not.
  bool possible(const Launch& launch, std::string& why) const;
  // `trainer profile --check` of plans, each the config with these keys changed, on `rounds` rounds. Throws
  // RunError with the end of the log.
  std::vector<PlanRun> check(const Launch& launch, const std::vector<std::vector<std::string>>& plans,
                             int profiled_steps, int rounds) const;

 private:
  int start(const Launch& launch, const std::vector<std::string>& words) const;
  void must_succeed(const Launch& launch, const std::vector<std::string>& words) const;

  std::filesystem::path work_, config_, log_, program_, slow_link_;
};

}  // namespace trainer
