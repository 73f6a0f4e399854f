#include "schedule/step_graph.h"

#include <algorithm>
#include <functional>
#include <map>

#include "base/error.h"
#include "base/hash.h"

namespace trainer {
namespace {

// Position of a use in the program.
struct Occurrence {
  size_t position;
  TaskId task;
  Access access;
  int distance;
};

void add_edge(Task& task, TaskId self, TaskId producer, int distance) {
  if (producer == self && distance == 0) return;
  for (const Edge& edge : task.after)
    if (edge.producer == producer && edge.distance == distance) return;
  task.after.push_back({producer, distance});
}

// Dependencies of one buffer by the program's sequential meaning: reads wait for the write before them,
// writes for the write and the reads before them; where there is none in this step, for that of the slot's
// previous use.
void derive_edges(StepGraph& graph, const Buffer& buffer, const std::vector<Occurrence>& all) {
  const int versions = buffer.versions;
  const auto writes = [](const Occurrence& o) { return o.access != Access::kRead; };
  const auto last_writer_before = [&](size_t index) -> const Occurrence* {
    while (index-- > 0)
      if (writes(all[index])) return &all[index];
    return nullptr;
  };
  const Occurrence* last_writer = last_writer_before(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    Task& task = graph.tasks[static_cast<size_t>(all[i].task)];
    const Occurrence* before = last_writer_before(i);
    if (!writes(all[i])) {
      if (all[i].distance > 0) {
        if (last_writer) add_edge(task, all[i].task, last_writer->task, all[i].distance);
      } else if (before) {
        add_edge(task, all[i].task, before->task, 0);
      } else if (last_writer && buffer.persistent) {
        add_edge(task, all[i].task, last_writer->task, versions);
      }
      continue;
    }
    const size_t from = before ? static_cast<size_t>(before - all.data()) + 1 : 0;
    if (before) {
      add_edge(task, all[i].task, before->task, 0);
    } else if (last_writer) {
      add_edge(task, all[i].task, last_writer->task, versions);
      const size_t tail = static_cast<size_t>(last_writer - all.data()) + 1;
      for (size_t r = tail; r < all.size(); ++r)
        if (all[r].distance == 0) add_edge(task, all[i].task, all[r].task, versions);
    }
    for (size_t r = from; r < i; ++r)
      if (!writes(all[r]) && all[r].distance == 0) add_edge(task, all[i].task, all[r].task, 0);
    if (!before)
      for (const Occurrence& o : all)
        if (!writes(o) && o.distance > 0) add_edge(task, all[i].task, o.task, versions - o.distance);
  }
}

// Temporary memory of one lane: a lane does one thing at a time, in whatever order.
bool orders_nothing(const StepGraph& graph, BufferId buffer, const std::vector<Occurrence>& all) {
  return std::all_of(all.begin(), all.end(), [&](const Occurrence& o) {
    const Task& task = graph.tasks[static_cast<size_t>(o.task)];
    return task.lane == graph.tasks[static_cast<size_t>(all.front().task)].lane &&
           std::all_of(task.uses.begin(), task.uses.end(),
                       [&](const Use& use) { return use.buffer != buffer || use.role == Role::kTemporary; });
  });
}

}  // namespace

bool is_main_path(TaskKind kind) {
  return kind == TaskKind::kForward || kind == TaskKind::kBackward || kind == TaskKind::kSend ||
         kind == TaskKind::kReceive;
}

const char* name_of(TaskKind kind) {
  static constexpr const char* kNames[] = {"Forward",   "Backward", "Recover",  "Send",     "Receive",
                                           "GradFold",  "GradSync", "GradNorm", "NormSync", "UpdateShard",
                                           "PrefetchW", "Offload",  "Reload"};
  return kNames[static_cast<size_t>(kind)];
}

const char* name_of(LaneKind kind) {
  static constexpr const char* kNames[] = {
      "compute",        "receive_forward", "send_forward", "receive_backward", "send_backward", "collective",
      "host_to_device", "device_to_host",  "host_compute", "storage_read",     "storage_write"};
  return kNames[static_cast<size_t>(kind)];
}

const char* name_of(Tier tier) {
  static constexpr const char* kNames[] = {"long", "medium", "short"};
  return kNames[static_cast<size_t>(tier)];
}

uint64_t StepGraph::hash() const {
  Hasher h;
  h.add(provenance).add(period);
  for (const Lane& lane : lanes) {
    h.add(lane.kind).add(lane.order).add(lane.rank).add(lane.device).add(lane.link_group).add(lane.yields);
    for (TaskId task : lane.program) h.add(task);
  }
  for (const Buffer& b : buffers)
    h.add(b.name)
        .add(b.bytes)
        .add(b.tier)
        .add(b.space)
        .add(b.rank)
        .add(b.device)
        .add(b.versions)
        .add(b.persistent)
        .add(b.offset);
  for (const Task& t : tasks) {
    h.add(t.kind)
        .add(t.lane)
        .add(t.priority)
        .add(t.random_key)
        .add(t.communicator)
        .add(t.bytes)
        .add(t.predicate)
        .add(t.absorber);
    for (int16_t c : {t.at.rank, t.at.device, t.at.phase, t.at.stage, t.at.layer_begin, t.at.layer_end,
                      t.at.micro_batch, t.at.segment})
      h.add(c);
    for (const Use& u : t.uses) h.add(u.buffer).add(u.access).add(u.role).add(u.index).add(u.distance);
    for (const Edge& e : t.after) h.add(e.producer).add(e.distance);
  }
  return h.value();
}

std::string track_of(const Lane& lane) {
  std::string track = name_of(lane.kind);
  if (lane.device > 0) track += fmt::format(" {}", lane.device);
  return track;
}

std::string StepGraph::describe(TaskId id) const {
  const Task& t = tasks[static_cast<size_t>(id)];
  std::string text = name_of(t.kind);
  if (t.at.layer_begin >= 0)
    text += t.at.layer_end > t.at.layer_begin + 1
                ? fmt::format(" layers {}-{}", t.at.layer_begin, t.at.layer_end - 1)
                : fmt::format(" layer {}", t.at.layer_begin);
  if (t.at.micro_batch >= 0) text += fmt::format(" micro-batch {}", t.at.micro_batch);
  if (t.at.segment >= 0) text += fmt::format(" segment {}", t.at.segment);
  return text + fmt::format(" (rank {})", t.at.rank);
}

const Use* StepGraph::find(const Task& task, Role role, int index) const {
  for (const Use& use : task.uses)
    if (use.role == role && use.index == index) return &use;
  return nullptr;
}

LaneId StepGraphBuilder::add_lane(Lane lane) {
  graph_.lanes.push_back(std::move(lane));
  return static_cast<LaneId>(graph_.lanes.size() - 1);
}

BufferId StepGraphBuilder::add_buffer(Buffer buffer) {
  graph_.buffers.push_back(std::move(buffer));
  return static_cast<BufferId>(graph_.buffers.size() - 1);
}

TaskId StepGraphBuilder::append(Task task) {
  graph_.tasks.push_back(std::move(task));
  graph_.sequence.push_back(static_cast<TaskId>(graph_.tasks.size() - 1));
  return graph_.sequence.back();
}

TaskId StepGraphBuilder::insert_before(TaskId position, Task task) {
  const auto at = std::find(graph_.sequence.begin(), graph_.sequence.end(), position);
  require(at != graph_.sequence.end(), "task {} is not in the program", position);
  graph_.tasks.push_back(std::move(task));
  const auto id = static_cast<TaskId>(graph_.tasks.size() - 1);
  graph_.sequence.insert(at, id);
  return id;
}

void StepGraphBuilder::move_behind(const std::vector<std::pair<TaskId, TaskId>>& moves) {
  std::vector<bool> moved(graph_.tasks.size());
  std::map<TaskId, std::vector<TaskId>> followers;
  for (const auto& [task, position] : moves) {
    require(!moved[static_cast<size_t>(task)], "{} is moved twice", graph_.describe(task));
    moved[static_cast<size_t>(task)] = true;
    followers[position].push_back(task);
  }
  std::vector<TaskId> sequence;
  sequence.reserve(graph_.sequence.size());
  const std::function<void(TaskId)> place = [&](TaskId id) {
    sequence.push_back(id);
    if (const auto behind = followers.find(id); behind != followers.end())
      for (TaskId follower : behind->second) place(follower);
  };
  for (TaskId id : graph_.sequence)
    if (!moved[static_cast<size_t>(id)]) place(id);
  require(sequence.size() == graph_.sequence.size(), "tasks are moved behind each other");
  graph_.sequence = std::move(sequence);
}

LaneId StepGraphBuilder::lane(int rank, LaneKind kind, int device) {
  for (size_t i = 0; i < graph_.lanes.size(); ++i) {
    const Lane& known = graph_.lanes[i];
    if (known.rank == rank && known.kind == kind && known.device == device) return static_cast<LaneId>(i);
  }
  Lane lane;
  lane.kind = kind;
  lane.rank = static_cast<int16_t>(rank);
  lane.device = static_cast<int16_t>(device);
  return add_lane(std::move(lane));
}

void StepGraphBuilder::record_pass(const std::string& name) {
  graph_.provenance += graph_.provenance.empty() ? name : " + " + name;
}

StepGraph StepGraphBuilder::build() {
  StepGraph graph = std::move(graph_);
  graph_ = {};
  std::vector<std::vector<Occurrence>> uses(graph.buffers.size());
  std::vector<bool> written(graph.buffers.size());
  for (size_t position = 0; position < graph.sequence.size(); ++position) {
    const TaskId id = graph.sequence[position];
    Task& task = graph.tasks[static_cast<size_t>(id)];
    require(task.lane != kNone, "{} has no lane", graph.describe(id));
    graph.lanes[static_cast<size_t>(task.lane)].program.push_back(id);
    for (const Use& use : task.uses) {
      const auto b = static_cast<size_t>(use.buffer);
      const Buffer& buffer = graph.buffers[b];
      require(use.distance == 0 || (use.access == Access::kRead && buffer.persistent &&
                                    use.distance <= buffer.versions - (written[b] ? 1 : 0)),
              "{} reads '{}' {} steps back, which keeps {} versions", graph.describe(id), buffer.name,
              use.distance, buffer.versions);
      uses[b].push_back({position, id, use.access, use.distance});
    }
    for (const Use& use : task.uses)
      if (use.access != Access::kRead) written[static_cast<size_t>(use.buffer)] = true;
  }
  for (size_t b = 0; b < graph.buffers.size(); ++b)
    if (!orders_nothing(graph, static_cast<BufferId>(b), uses[b]))
      derive_edges(graph, graph.buffers[b], uses[b]);
  for (const Task& task : graph.tasks)
    for (const Edge& edge : task.after) graph.max_distance = std::max(graph.max_distance, edge.distance);
  return graph;
}

}  // namespace trainer
