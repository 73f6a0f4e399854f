#include "sim/simulator.h"

#include <algorithm>
#include <limits>
#include <map>

#include "base/error.h"
#include "sim/link_group.h"

namespace trainer {
namespace {

enum class What : uint8_t { kEnd, kFlow, kGroup };

struct Event {
  double time;
  int64_t order;  // equal times in the order in which they were foreseen
  What what;
  int index;    // of a run, or a link group
  int version;  // of the link group's rates
  bool operator>(const Event& other) const {
    return time != other.time ? time > other.time : order > other.order;
  }
};

class Simulator {
 public:
  Simulator(const StepGraph& graph, const CostTable& costs, int steps)
      : graph_(graph),
        costs_(costs),
        dispatcher_(graph, steps),
        dirty_(graph.lanes.size(), 0),
        receive_of_(graph.tasks.size(), kNone),
        held_(graph.lanes.size()) {
    check_costs();
    find_consumers();
    for (double rate : costs.group_rate) groups_.push_back({LinkGroup(rate)});
    runs_.reserve(graph.tasks.size() * static_cast<size_t>(steps));
    result_.runs.reserve(runs_.capacity());
  }

  Simulation run() {
    poll_everything();
    while (!dispatcher_.finished()) {
      if (events_.empty()) throw RunError("the program cannot go on:" + dispatcher_.blocked());
      now_ = events_.front().time;
      // Everything that happens at one moment happens before any lane chooses what to run next.
      while (!events_.empty() && events_.front().time == now_) {
        std::pop_heap(events_.begin(), events_.end(), std::greater<>());
        const Event event = events_.back();
        events_.pop_back();
        happen(event);
      }
      poll();
    }
    result_.end = now_;
    return std::move(result_);
  }

 private:
  struct Meeting {
    std::vector<int> members;  // runs that wait for the others, then run
    int running = 0;
  };
  struct Group {
    LinkGroup link;
    int version = 0;
    bool changed = false;
  };

  void check_costs() {
    const size_t tasks = graph_.tasks.size();
    require(costs_.seconds.size() == tasks, "{} costs for {} tasks", costs_.seconds.size(), tasks);
    for (const auto& seconds : costs_.seconds_in_step)
      require(seconds.size() == tasks &&
                  std::all_of(seconds.begin(), seconds.end(), [](double s) { return s >= 0; }),
              "a step's {} costs are not those of {} tasks, or below 0", seconds.size(), tasks);
    require(
        costs_.bytes.size() == costs_.rate.size() && (costs_.bytes.empty() || costs_.bytes.size() == tasks),
        "{} amounts of bytes and {} rates for {} tasks", costs_.bytes.size(), costs_.rate.size(), tasks);
    require(costs_.meeting.empty() || costs_.meeting.size() == tasks, "{} meetings for {} tasks",
            costs_.meeting.size(), tasks);
    for (size_t id = 0; id < tasks; ++id) {
      const double bytes = costs_.bytes.empty() ? 0 : costs_.bytes[id];
      if (costs_.seconds[id] >= 0 && (bytes == 0 || (bytes > 0 && costs_.rate[id] > 0))) continue;
      require(false, "{} costs {} seconds and moves {} bytes at {} bytes per second",
              graph_.describe(static_cast<TaskId>(id)), costs_.seconds[id], bytes,
              costs_.rate.empty() ? 0 : costs_.rate[id]);
    }
    const size_t lanes = graph_.lanes.size();
    require(costs_.link_group.empty() || costs_.link_group.size() == lanes, "{} link groups for {} lanes",
            costs_.link_group.size(), lanes);
    for (size_t lane = 0; lane < lanes; ++lane) {
      lane_group_.push_back(costs_.link_group.empty() ? graph_.lanes[lane].link_group
                                                      : costs_.link_group[lane]);
      if (costs_.group_rate.empty()) lane_group_.back() = kNone;
      require(lane_group_.back() < static_cast<int>(costs_.group_rate.size()), "link group {} has no rate",
              lane_group_.back());
    }
    require(costs_.lane_weight.empty() || costs_.lane_weight.size() == lanes, "{} weights for {} lanes",
            costs_.lane_weight.size(), lanes);
    for (double weight : costs_.lane_weight) require(weight > 0, "a lane has the weight {}", weight);
    for (double rate : costs_.group_rate) require(rate > 0, "a link group has the rate {}", rate);
    if (!costs_.meeting.empty())
      for (int meeting : costs_.meeting)
        if (meeting != kNone) {
          if (meeting_size_.size() <= static_cast<size_t>(meeting))
            meeting_size_.resize(static_cast<size_t>(meeting) + 1);
          ++meeting_size_[static_cast<size_t>(meeting)];
        }
  }

  // Lanes that a task's completion may set going, by task, in one array.
  void find_consumers() {
    const size_t tasks = graph_.tasks.size();
    first_consumer_.assign(tasks + 1, 0);
    for (const Task& task : graph_.tasks)
      for (const Edge& edge : task.after) ++first_consumer_[static_cast<size_t>(edge.producer) + 1];
    for (size_t id = 0; id < tasks; ++id) first_consumer_[id + 1] += first_consumer_[id];
    consumer_lanes_.resize(static_cast<size_t>(first_consumer_.back()));
    std::vector<int> next(first_consumer_.begin(), first_consumer_.end() - 1);
    for (size_t id = 0; id < tasks; ++id) {
      const Task& task = graph_.tasks[id];
      task_lane_.push_back(task.lane);
      for (const Edge& edge : task.after) {
        const auto producer = static_cast<size_t>(edge.producer);
        consumer_lanes_[static_cast<size_t>(next[producer]++)] = task.lane;
        const Task& sender = graph_.tasks[producer];
        if (task.kind == TaskKind::kReceive && sender.kind == TaskKind::kSend &&
            sender.at.rank != task.at.rank && edge.distance == 0)
          receive_of_[producer] = static_cast<TaskId>(id);
      }
    }
  }

  LaneId lane_of(int run) const {
    return task_lane_[static_cast<size_t>(runs_[static_cast<size_t>(run)].instance.task)];
  }

  void foresee(double time, What what, int index, int version = 0) {
    events_.push_back({time, order_++, what, index, version});
    std::push_heap(events_.begin(), events_.end(), std::greater<>());
  }

  void mark(LaneId lane) {
    if (dirty_[static_cast<size_t>(lane)]) return;
    dirty_[static_cast<size_t>(lane)] = 1;
    to_poll_.push_back(lane);
  }

  void poll_everything() {
    for (size_t lane = 0; lane < graph_.lanes.size(); ++lane) mark(static_cast<LaneId>(lane));
    poll();
  }

  void poll() {
    if (dispatcher_.steps_completed() != steps_completed_) {
      // A further step was admitted: any lane may have something to do.
      steps_completed_ = dispatcher_.steps_completed();
      for (size_t lane = 0; lane < graph_.lanes.size(); ++lane) mark(static_cast<LaneId>(lane));
    }
    std::sort(to_poll_.begin(), to_poll_.end());
    for (LaneId lane : to_poll_) {
      dirty_[static_cast<size_t>(lane)] = 0;
      if (const auto instance = dispatcher_.next(lane)) {
        runs_.push_back({*instance, now_, now_});
        take(static_cast<int>(runs_.size() - 1));
      }
    }
    for (LaneId lane : to_poll_) release_sends(lane);
    to_poll_.clear();
    for (size_t g : changed_groups_) {
      Group& group = groups_[g];
      group.changed = false;
      ++group.version;
      if (const double next = group.link.settle(now_); next < std::numeric_limits<double>::infinity())
        foresee(std::max(next, now_), What::kGroup, static_cast<int>(g), group.version);
    }
    changed_groups_.clear();
  }

  void take(int run) {
    const auto task = static_cast<size_t>(runs_[static_cast<size_t>(run)].instance.task);
    if (const TaskId receive = receive_of_[task]; receive != kNone) {
      const LaneId lane = task_lane_[static_cast<size_t>(receive)];
      held_[static_cast<size_t>(lane)].push_back(run);
      // The lane of the receive may have been looked at already in this round.
      return release_sends(lane);
    }
    if (costs_.meeting.empty() || costs_.meeting[task] == kNone) return begin(run);
    const int number = costs_.meeting[task];
    Meeting& meeting = meetings_[{number, runs_[static_cast<size_t>(run)].instance.step}];
    meeting.members.push_back(run);
    if (static_cast<int>(meeting.members.size()) < meeting_size_[static_cast<size_t>(number)]) return;
    meeting.running = static_cast<int>(meeting.members.size());
    for (int member : meeting.members) begin(member);
  }

  // Sends whose receive on this lane waits for nothing but them.
  void release_sends(LaneId lane) {
    std::erase_if(held_[static_cast<size_t>(lane)], [&](int run) {
      const Instance send = runs_[static_cast<size_t>(run)].instance;
      const TaskId receive = receive_of_[static_cast<size_t>(send.task)];
      if (!dispatcher_.waits_only_for({receive, send.step}, send.task)) return false;
      begin(run);
      return true;
    });
  }

  double seconds_of(TaskId task, int step) const {
    const auto in = static_cast<size_t>(step);
    const auto& all = in < costs_.seconds_in_step.size() ? costs_.seconds_in_step[in] : costs_.seconds;
    return all[static_cast<size_t>(task)];
  }

  // Of a run: the task's costs, and those of the task it has absorbed.
  struct Cost {
    double seconds, bytes, rate;
  };
  Cost cost_of(Instance instance) const {
    const auto task = static_cast<size_t>(instance.task);
    const bool moves = !costs_.bytes.empty();
    Cost cost{seconds_of(instance.task, instance.step), moves ? costs_.bytes[task] : 0,
              moves ? costs_.rate[task] : 0};
    if (instance.absorbed == kNone) return cost;
    const auto other = static_cast<size_t>(instance.absorbed);
    cost.seconds += seconds_of(instance.absorbed, instance.step);
    if (const double bytes = moves ? costs_.bytes[other] : 0; bytes > 0) {
      const double alone = bytes / costs_.rate[other] + (cost.bytes > 0 ? cost.bytes / cost.rate : 0);
      cost.bytes += bytes;
      cost.rate = cost.bytes / alone;
    }
    return cost;
  }

  void begin(int run) {
    TaskRun& r = runs_[static_cast<size_t>(run)];
    r.begin = now_;
    const Cost cost = cost_of(r.instance);
    if (cost.bytes > 0 && lane_group_[static_cast<size_t>(lane_of(run))] != kNone)
      return foresee(now_ + cost.seconds, What::kFlow, run);
    foresee(now_ + cost.seconds + (cost.bytes > 0 ? cost.bytes / cost.rate : 0), What::kEnd, run);
  }

  void happen(const Event& event) {
    switch (event.what) {
      case What::kEnd:
        return end(event.index);
      case What::kFlow: {
        const Cost cost = cost_of(runs_[static_cast<size_t>(event.index)].instance);
        const auto group = static_cast<size_t>(lane_group_[static_cast<size_t>(lane_of(event.index))]);
        groups_[group].link.add(
            event.index, cost.bytes,
            {cost.rate,
             costs_.lane_weight.empty() ? 1 : costs_.lane_weight[static_cast<size_t>(lane_of(event.index))]},
            now_);
        return change(group);
      }
      case What::kGroup: {
        const auto group = static_cast<size_t>(event.index);
        if (event.version != groups_[group].version) return;  // foreseen before the rates changed
        finished_.clear();
        groups_[group].link.finish(now_, finished_);
        for (int run : finished_) end(run);
        return change(group);
      }
    }
  }

  void change(size_t group) {
    if (groups_[group].changed) return;
    groups_[group].changed = true;
    changed_groups_.push_back(group);
  }

  void end(int run) {
    const Instance instance = runs_[static_cast<size_t>(run)].instance;
    if (const int number =
            costs_.meeting.empty() ? kNone : costs_.meeting[static_cast<size_t>(instance.task)];
        number != kNone) {
      const auto meeting = meetings_.find({number, instance.step});
      if (--meeting->second.running > 0) return;
      for (int member : meeting->second.members) complete(member);
      meetings_.erase(meeting);
      return;
    }
    complete(run);
  }

  void complete(int run) {
    TaskRun& r = runs_[static_cast<size_t>(run)];
    r.end = now_;
    dispatcher_.complete(r.instance);
    mark(lane_of(run));
    for (const TaskId id : {r.instance.task, r.instance.absorbed}) {
      if (id == kNone) continue;
      const auto task = static_cast<size_t>(id);
      for (int i = first_consumer_[task]; i < first_consumer_[task + 1]; ++i)
        mark(consumer_lanes_[static_cast<size_t>(i)]);
    }
    result_.runs.push_back(r);
  }

  const StepGraph& graph_;
  const CostTable& costs_;
  Dispatcher dispatcher_;
  double now_ = 0;
  int64_t order_ = 0;
  int steps_completed_ = 0;
  std::vector<Event> events_;   // a heap, the earliest on top
  std::vector<TaskRun> runs_;   // in the order in which lanes took them
  std::vector<uint8_t> dirty_;  // by lane: in to_poll_
  std::vector<LaneId> to_poll_;
  std::vector<int> first_consumer_;  // [tasks + 1] into consumer_lanes_
  std::vector<LaneId> consumer_lanes_;
  std::vector<LaneId> task_lane_;
  std::vector<TaskId> receive_of_;      // by Send
  std::vector<std::vector<int>> held_;  // by lane of the receive: sends that are not yet expected
  std::vector<int> lane_group_, meeting_size_;
  std::map<std::pair<int, int>, Meeting> meetings_;  // (number, step)
  std::vector<Group> groups_;
  std::vector<size_t> changed_groups_;
  std::vector<int> finished_;
  Simulation result_;
};

}  // namespace

Simulation simulate(const StepGraph& graph, const CostTable& costs, int steps) {
  return Simulator(graph, costs, steps).run();
}

}  // namespace trainer
