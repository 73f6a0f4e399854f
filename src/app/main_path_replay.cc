#include "app/main_path_replay.h"

#include <cmath>

#include "schedule/one_f_one_b.h"
#include "sim/simulator.h"

namespace trainer {

MainPathReplay::MainPathReplay(Problem problem) {
  if (problem.world_size() > kRanksSimulated) return;
  problem.ranks.clear();
  StepGraphBuilder builder;
  one_f_one_b(builder, problem);
  graph_ = builder.build();
}

double MainPathReplay::seconds(const std::vector<WaitLedger::StepAccount>& accounts) const {
  if (graph_.tasks.empty()) return std::nan("");
  struct Position {
    size_t compute = 0, forward = 0, backward = 0;
  };
  std::vector<Position> next(accounts.size());
  const auto take = [](const std::vector<double>& values, size_t& position) {
    return position < values.size() ? values[position++] : std::nan("");
  };
  CostTable costs;
  costs.seconds.assign(graph_.tasks.size(), 0);
  double sum = 0;
  for (TaskId id : graph_.sequence) {
    const Task& task = graph_.tasks[static_cast<size_t>(id)];
    const WaitLedger::StepAccount& account = accounts[static_cast<size_t>(task.at.rank)];
    Position& position = next[static_cast<size_t>(task.at.rank)];
    double& seconds = costs.seconds[static_cast<size_t>(id)];
    if (task.kind == TaskKind::kForward || task.kind == TaskKind::kBackward) {
      seconds = take(account.compute, position.compute);
    } else if (task.kind == TaskKind::kReceive) {
      seconds = graph_.lanes[static_cast<size_t>(task.lane)].kind == LaneKind::kReceiveForward
                    ? take(account.received_forward, position.forward)
                    : take(account.received_backward, position.backward);
    }
    sum += seconds;
  }
  return std::isnan(sum) ? sum : simulate(graph_, costs).end;
}

}  // namespace trainer
