#include "sim/link_group.h"

#include <algorithm>
#include <limits>

namespace trainer {

std::vector<double> fair_rates(const std::vector<FlowLimit>& limits, double capacity) {
  std::vector<double> rates;
  double left = capacity, weights = 0;
  for (const FlowLimit& limit : limits) weights += limit.weight;
  for (const FlowLimit& limit : limits) {
    rates.push_back(std::min(limit.rate, left * (limit.weight / weights)));
    left -= rates.back();
    weights -= limit.weight;
  }
  return rates;
}

void LinkGroup::advance(double now) {
  for (Flow& flow : flows_) flow.left = std::max(0.0, flow.left - flow.rate * (now - time_));
  time_ = now;
}

void LinkGroup::add(int id, double bytes, FlowLimit limit, double now) {
  advance(now);
  const auto at =
      std::upper_bound(flows_.begin(), flows_.end(), limit, [](const FlowLimit& one, const Flow& flow) {
        return one.rate * flow.limit.weight < flow.limit.rate * one.weight;
      });
  flows_.insert(at, {id, limit, bytes, 0, std::numeric_limits<double>::infinity()});
}

double LinkGroup::settle(double now) {
  advance(now);
  std::vector<FlowLimit> limits;
  for (const Flow& flow : flows_) limits.push_back(flow.limit);
  const auto rates = fair_rates(limits, capacity_);
  double next = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < flows_.size(); ++i) {
    flows_[i].rate = rates[i];
    flows_[i].end = now + flows_[i].left / rates[i];
    next = std::min(next, flows_[i].end);
  }
  return next;
}

void LinkGroup::finish(double now, std::vector<int>& done) {
  advance(now);
  std::erase_if(flows_, [&](const Flow& flow) {
    if (flow.end > now) return false;
    done.push_back(flow.id);
    return true;
  });
}

}  // namespace trainer
