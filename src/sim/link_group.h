// Bandwidth of one link group shared by the transfers that are under way on it.
#pragma once

#include <vector>

namespace trainer {

struct FlowLimit {
  double rate, weight = 1;
};

// Max-min fair rates: flows share by their weights, and what one cannot use of its share goes to the others.
// `limits` [flows], by ascending rate / weight. The rates do not exceed the limits and sum to min(capacity,
// sum of limits).
std::vector<double> fair_rates(const std::vector<FlowLimit>& limits, double capacity);

// Transfers in progress. Times are absolute and never run backwards.
class LinkGroup {
 public:
  explicit LinkGroup(double capacity) : capacity_(capacity) {}

  // A transfer of `bytes` begins; `limit` is its rate alone and its weight against others.
  void add(int id, double bytes, FlowLimit limit, double now);
  // Shares the bandwidth anew after additions and removals. Returns when the next transfer ends; infinity
  // when there is none.
  double settle(double now);
  // Removes the transfers that end by `now`, the time `settle` gave, and appends their ids to `done`.
  void finish(double now, std::vector<int>& done);

 private:
  struct Flow {
    int id;
    FlowLimit limit;
    double left, rate, end;  // bytes, bytes per second, seconds
  };
  void advance(double now);

  double capacity_, time_ = 0;
  std::vector<Flow> flows_;  // by ascending limit / weight
};

}  // namespace trainer
