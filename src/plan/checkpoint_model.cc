#include "plan/checkpoint_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace trainer {
namespace {

constexpr int kNoVariable = -1;
// The objective's scale: a mean layer's forward counts this much, so that the tie-breaks stay well above the
// solver's tolerances.
constexpr double kLayerCost = 1000;

size_t at(BoundaryHome home) { return static_cast<size_t>(home); }

// Splits the bytes of `boundaries`, laid end to end in that order, at the marks of the windows.
void split(CheckpointSchedule& schedule, const std::vector<int>& boundaries,
           const std::vector<int64_t>& bytes, const std::vector<int>& windows, const Cumulative& marks,
           std::vector<WindowBytes> BoundaryPlacement::*list) {
  int64_t begin = 0;
  for (int i : boundaries) {
    const int64_t end = begin + bytes[static_cast<size_t>(i)];
    int64_t from = 0;
    for (size_t k = 0; k < windows.size(); ++k) {
      const int64_t piece = std::min(end, marks[k]) - std::max(begin, from);
      if (piece > 0) (schedule.boundaries[static_cast<size_t>(i)].*list).push_back({windows[k], piece});
      from = marks[k];
    }
    begin = end;
  }
}

}  // namespace

CheckpointModel::CheckpointModel(const CheckpointProblem& problem, bool storage_may_wait)
    : problem_(problem), layers_(problem.layers()) {
  unit_ = static_cast<double>(
      std::max<int64_t>(1, *std::max_element(problem.boundary_bytes.begin(), problem.boundary_bytes.end())));
  const double total = std::accumulate(problem.forward_seconds.begin(), problem.forward_seconds.end(), 0.0);
  if (total > 0) time_scale_ = kLayerCost * layers_ / total;
  if (problem.host_bytes > 0) away_.push_back(BoundaryHome::kHost);
  if (problem.storage_bytes > 0) away_.push_back(BoundaryHome::kStorage);
  add_homes();
  add_edges();
  add_capacities();
  for (BoundaryHome home : away_) {
    add_outflow(home);
    add_inflow(home);
  }
  add_links(storage_may_wait);
  add_forward_memory();
  add_backward_memory();
}

double CheckpointModel::size(int boundary) const {
  return static_cast<double>(problem_.boundary_bytes[static_cast<size_t>(boundary)]) / unit_;
}

// Equation (1): the output of the edge's last layer is there already.
double CheckpointModel::recompute_seconds(int begin, int end) const {
  double sum = 0;
  for (int j = begin; j + 1 < end; ++j) sum += problem_.forward_seconds[static_cast<size_t>(j)];
  return sum;
}

int CheckpointModel::add(double cost, double upper, bool integer) {
  return program_.add_variable({0, upper, cost, integer});
}

void CheckpointModel::add_homes() {
  homes_.resize(static_cast<size_t>(layers_) + 1);
  for (int i = 0; i <= layers_; ++i) {
    Homes& home = homes_[static_cast<size_t>(i)];
    home.fill(kNoVariable);
    const bool end = i == 0 || i == layers_;
    const double price = problem_.checkpoint_price * time_scale_;
    home[at(BoundaryHome::kDevice)] = add(price, 1, true);
    if (end) {
      program_.variables.back().lower = 1;
      continue;
    }
    for (BoundaryHome away : away_)
      home[at(away)] =
          add(price + (away == BoundaryHome::kStorage ? problem_.storage_price * time_scale_ : 0), 1, true);
  }
}

// Equations (2) and (3): a path from 0 to L, its edges by the home of their beginning. With the homes decided
// the edges are, so they need not be integers.
void CheckpointModel::add_edges() {
  std::vector<MilpRow> in(static_cast<size_t>(layers_) + 1);
  for (int s = 0; s < layers_; ++s)
    for (BoundaryHome home : {BoundaryHome::kDevice, BoundaryHome::kHost, BoundaryHome::kStorage}) {
      const int there = homes_[static_cast<size_t>(s)][at(home)];
      if (there == kNoVariable) continue;
      MilpRow out;
      out.terms.push_back({there, -1});
      for (int e = s + 1; e <= layers_; ++e) {
        if (problem_.longest_edge > 0 && e - s > problem_.longest_edge) break;
        const int x = add(recompute_seconds(s, e) * time_scale_, 1);
        edges_[home].push_back({s, e, x});
        out.terms.push_back({x, 1});
        in[static_cast<size_t>(e)].terms.push_back({x, 1});
      }
      out.lower = out.upper = 0;
      program_.rows.push_back(std::move(out));
    }
  for (int i = 1; i <= layers_; ++i) {
    MilpRow& row = in[static_cast<size_t>(i)];
    for (int there : homes_[static_cast<size_t>(i)])
      if (there != kNoVariable) row.terms.push_back({there, -1});
    row.lower = row.upper = 0;
    program_.rows.push_back(std::move(row));
  }
}

// Equation (4). Budgets are rounded down to what sums of whole boundaries can reach, which keeps the linear
// relaxation from counting on a fraction of one.
void CheckpointModel::add_capacities() {
  int64_t grain = 0;
  for (int64_t bytes : problem_.boundary_bytes) grain = std::gcd(grain, bytes);
  const auto capacity = [&](BoundaryHome home, int64_t budget) {
    MilpRow row;
    for (int i = 0; i <= layers_; ++i)
      if (const int there = homes_[static_cast<size_t>(i)][at(home)]; there != kNoVariable)
        row.terms.push_back({there, size(i)});
    row.upper = static_cast<double>(grain > 0 ? budget / grain * grain : budget) / unit_;
    if (!row.terms.empty()) program_.rows.push_back(std::move(row));
  };
  capacity(BoundaryHome::kDevice, problem_.device_bytes);
  capacity(BoundaryHome::kHost, problem_.host_bytes);
  capacity(BoundaryHome::kStorage, problem_.storage_bytes);
}

// Equations (5) and (6), forward: waiting(w) = waiting(w - 1) + A_w - out(w), and none is left at the end.
// What goes to storage passes through host memory and goes on in a later window.
void CheckpointModel::add_outflow(BoundaryHome home) {
  Flow& flow = flows_[home];
  const auto windows = static_cast<size_t>(layers_);
  for (auto* list : {&flow.out, &flow.write, &flow.waiting, &flow.staged}) list->assign(windows, kNoVariable);
  for (int w = 1; w < layers_; ++w) {
    const auto i = static_cast<size_t>(w);
    const double left = w + 1 == layers_ ? 0 : kUnbounded;
    flow.out[i] = add(0);
    flow.waiting[i] = add(0, left);
    MilpRow row{{{flow.waiting[i], 1}, {flow.out[i], 1}, {homes_[i][at(home)], -size(w)}}, 0, 0};
    if (w > 1) row.terms.push_back({flow.waiting[i - 1], -1});
    program_.rows.push_back(std::move(row));
    if (home != BoundaryHome::kStorage) continue;
    flow.write[i] = add(0);
    flow.staged[i] = add(0, left);
    MilpRow write{{{flow.staged[i], 1}, {flow.write[i], 1}, {flow.out[i], -1}}, 0, 0};
    MilpRow staged{{{flow.write[i], 1}}, -kUnbounded, 0};
    if (w > 1) {
      write.terms.push_back({flow.staged[i - 1], -1});
      staged.terms.push_back({flow.staged[i - 1], -1});
    }
    program_.rows.push_back(std::move(write));
    program_.rows.push_back(std::move(staged));
  }
}

// Backward, from the head's window down: early(w) = early(w + 1) + back(w) - what is due with window w, which
// is the beginning of the edge that ends at w.
void CheckpointModel::add_inflow(BoundaryHome home) {
  Flow& flow = flows_[home];
  const auto windows = static_cast<size_t>(layers_) + 1;
  for (auto* list : {&flow.back, &flow.read, &flow.early, &flow.fetched}) list->assign(windows, kNoVariable);
  std::vector<std::vector<MilpTerm>> due(windows);
  for (const EdgeVariable& edge : edges_[home])
    due[static_cast<size_t>(edge.end)].push_back({edge.variable, size(edge.begin)});
  for (int w = layers_; w >= 2; --w) {
    const auto i = static_cast<size_t>(w);
    const double left = w == 2 ? 0 : kUnbounded;
    flow.back[i] = add(0);
    flow.early[i] = add(0, left);
    MilpRow row{std::move(due[i]), 0, 0};
    row.terms.push_back({flow.early[i], 1});
    row.terms.push_back({flow.back[i], -1});
    if (w < layers_) row.terms.push_back({flow.early[i + 1], -1});
    program_.rows.push_back(std::move(row));
    if (home != BoundaryHome::kStorage) continue;
    flow.read[i] = add(0);
    flow.fetched[i] = add(0, left);
    MilpRow read{{{flow.fetched[i], 1}, {flow.back[i], 1}, {flow.read[i], -1}}, 0, 0};
    MilpRow fetched{{{flow.back[i], 1}}, -kUnbounded, 0};
    if (w < layers_) {
      read.terms.push_back({flow.fetched[i + 1], -1});
      fetched.terms.push_back({flow.fetched[i + 1], -1});
    }
    program_.rows.push_back(std::move(read));
    program_.rows.push_back(std::move(fetched));
  }
}

// What a window carries beyond its spare capacity is waited for, at the link's rate.
void CheckpointModel::add_link(const TransferWindows& link, int first, int last, std::vector<int> Flow::*flow,
                               bool may_wait) {
  for (int w = first; w <= last; ++w) {
    MilpRow row;
    for (const auto& [home, flows] : flows_)
      if (const int variable = (flows.*flow)[static_cast<size_t>(w)]; variable != kNoVariable)
        row.terms.push_back({variable, 1});
    if (row.terms.empty()) continue;
    if (may_wait) row.terms.push_back({add(unit_ / link.bytes_per_second * time_scale_), -1});
    row.upper = static_cast<double>(link.spare(w)) / unit_;
    program_.rows.push_back(std::move(row));
  }
}

void CheckpointModel::add_links(bool storage_may_wait) {
  add_link(problem_.forward_to_host, 1, layers_ - 1, &Flow::out, true);
  add_link(problem_.backward_to_device, 2, layers_, &Flow::back, true);
  add_link(problem_.storage_write, 1, layers_ - 1, &Flow::write, storage_may_wait);
  add_link(problem_.storage_read, 2, layers_, &Flow::read, storage_may_wait);
}

// While layer w runs forward: its input and output, what stays on the device from before, and what waits to
// leave.
void CheckpointModel::add_forward_memory() {
  MilpRow resident;
  for (int w = 0; w < layers_; ++w) {
    MilpRow row = resident;
    for (const auto& [home, flow] : flows_)
      if (w > 1) row.terms.push_back({flow.waiting[static_cast<size_t>(w) - 1], 1});
    const int64_t workspace =
        problem_.forward_workspace.empty() ? 0 : problem_.forward_workspace[static_cast<size_t>(w)];
    row.upper = static_cast<double>(problem_.device_bytes - workspace) / unit_ - size(w) - size(w + 1);
    program_.rows.push_back(std::move(row));
    resident.terms.push_back({homes_[static_cast<size_t>(w)][at(BoundaryHome::kDevice)], size(w)});
  }
}

// While layer w runs backward, and in the head's window (w = L): what stays on the device up to w, the
// beginning of the edge at work, what its recompute left up to w, and what has come or is coming back.
void CheckpointModel::add_backward_memory() {
  std::vector<MilpRow> rows(static_cast<size_t>(layers_) + 1);
  std::vector<double> before{0};  // sizes of boundaries 0..i-1
  for (int i = 0; i <= layers_; ++i) before.push_back(before.back() + size(i));
  for (const auto& [home, edges] : edges_)
    for (const EdgeVariable& edge : edges) {
      const bool away = home != BoundaryHome::kDevice;
      const double own = away ? size(edge.begin) : 0;
      for (int w = edge.begin; w < edge.end; ++w) {
        const double recomputed =
            before[static_cast<size_t>(w) + 1] - before[static_cast<size_t>(edge.begin) + 1];
        rows[static_cast<size_t>(w)].terms.push_back({edge.variable, own + recomputed});
      }
      if (away) rows[static_cast<size_t>(edge.end)].terms.push_back({edge.variable, own});
    }
  MilpRow resident;
  for (int w = 0; w <= layers_; ++w) {
    const auto i = static_cast<size_t>(w);
    resident.terms.push_back({homes_[i][at(BoundaryHome::kDevice)], size(w)});
    MilpRow row = std::move(rows[i]);
    row.terms.insert(row.terms.end(), resident.terms.begin(), resident.terms.end());
    for (const auto& [home, flow] : flows_)
      if (w >= 2) row.terms.push_back({flow.early[i], 1});
    const int64_t workspace = problem_.backward_workspace.empty() ? 0 : problem_.backward_workspace[i];
    row.upper = static_cast<double>(problem_.device_bytes - workspace) / unit_;
    program_.rows.push_back(std::move(row));
  }
}

bool CheckpointModel::fix_homes(const std::vector<BoundaryHome>& homes) {
  for (int i = 0; i <= layers_; ++i)
    for (BoundaryHome home : {BoundaryHome::kDevice, BoundaryHome::kHost, BoundaryHome::kStorage}) {
      const bool there = homes[static_cast<size_t>(i)] == home;
      const int variable = homes_[static_cast<size_t>(i)][at(home)];
      if (variable != kNoVariable) {
        MilpVariable& v = program_.variables[static_cast<size_t>(variable)];
        v.lower = v.upper = there ? 1 : 0;
      } else if (there) {
        return false;
      }
    }
  return true;
}

// The running sum, in whole bytes.
Cumulative CheckpointModel::cumulative(const std::vector<int>& variables, const std::vector<double>& values,
                                       bool forward) const {
  Cumulative marks;
  double sum = 0;
  const int first = forward ? 1 : layers_, last = forward ? layers_ - 1 : 2, step = forward ? 1 : -1;
  for (int w = first; forward ? w <= last : w >= last; w += step) {
    sum += values[static_cast<size_t>(variables[static_cast<size_t>(w)])];
    marks.push_back(std::llround(sum * unit_));
  }
  return marks;
}

void CheckpointModel::place_home(CheckpointSchedule& schedule, BoundaryHome home,
                                 const std::vector<double>& values) const {
  const Flow& flow = flows_.at(home);
  const std::vector<int64_t>& bytes = problem_.boundary_bytes;
  std::vector<int> ascending, descending;
  std::vector<int64_t> exists(static_cast<size_t>(layers_) + 1), due = exists;  // by window
  int64_t total = 0;
  for (const auto& [begin, end] : schedule.edges()) {
    if (schedule.boundaries[static_cast<size_t>(begin)].home != home) continue;
    ascending.push_back(begin);
    total += bytes[static_cast<size_t>(begin)];
    for (int w = begin; w <= layers_; ++w)
      exists[static_cast<size_t>(w)] += bytes[static_cast<size_t>(begin)];
    for (int w = 0; w <= end; ++w) due[static_cast<size_t>(w)] += bytes[static_cast<size_t>(begin)];
  }
  descending.assign(ascending.rbegin(), ascending.rend());
  std::vector<int> forward, backward;
  for (int w = 1; w < layers_; ++w) forward.push_back(w);
  for (int w = layers_; w >= 2; --w) backward.push_back(w);

  // The solver's tolerance is many bytes: hold the marks to what must be exact.
  Cumulative out = cumulative(flow.out, values, true), back = cumulative(flow.back, values, false);
  const bool storage = home == BoundaryHome::kStorage;
  for (size_t k = 0; k < forward.size(); ++k) {
    const bool last = k + 1 + (storage ? 1 : 0) >= forward.size();
    out[k] = last ? total : std::min(out[k], exists[static_cast<size_t>(forward[k])]);
  }
  for (size_t k = 0; k < backward.size(); ++k)
    back[k] = storage && k == 0 ? 0 : std::clamp(back[k], due[static_cast<size_t>(backward[k])], total);
  split(schedule, ascending, bytes, forward, out, &BoundaryPlacement::device_to_host);
  split(schedule, descending, bytes, backward, back, &BoundaryPlacement::host_to_device);
  if (!storage) return;
  Cumulative write = cumulative(flow.write, values, true), read = cumulative(flow.read, values, false);
  for (size_t k = 0; k < forward.size(); ++k)
    write[k] = k + 1 == forward.size() ? total : k == 0 ? 0 : std::min(write[k], out[k - 1]);
  for (size_t k = 0; k < backward.size(); ++k)
    read[k] = std::clamp(read[k], k + 1 == backward.size() ? total : back[k + 1], total);
  split(schedule, ascending, bytes, forward, write, &BoundaryPlacement::storage_write);
  split(schedule, descending, bytes, backward, read, &BoundaryPlacement::storage_read);
}

CheckpointSchedule CheckpointModel::schedule(const std::vector<double>& values) const {
  CheckpointSchedule result;
  result.boundaries.resize(static_cast<size_t>(layers_) + 1);
  for (int i = 0; i <= layers_; ++i)
    for (BoundaryHome home : {BoundaryHome::kDevice, BoundaryHome::kHost, BoundaryHome::kStorage})
      if (const int there = homes_[static_cast<size_t>(i)][at(home)];
          there != kNoVariable && values[static_cast<size_t>(there)] > 0.5)
        result.boundaries[static_cast<size_t>(i)].home = home;
  for (BoundaryHome home : away_) place_home(result, home, values);
  return result;
}

}  // namespace trainer
