// The step graph: one training step as a program of tasks on lanes. Pure data: no pointers, streams, closures
// or times. See docs/architecture.md, "A training step is a program".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trainer {

using TaskId = int32_t;
using BufferId = int32_t;
using LaneId = int32_t;
inline constexpr int32_t kNone = -1;

enum class Tier : uint8_t { kLong, kMedium, kShort };
inline constexpr int kTierCount = 3;
enum class Space : uint8_t { kDevice, kPinned, kHost, kStorage, kPeer };
enum class Access : uint8_t { kRead, kWrite, kAccumulate };
enum class LaneKind : uint8_t {
  kCompute,
  kReceiveForward,
  kSendForward,
  kReceiveBackward,
  kSendBackward,
  kCollective,
  kHostToDevice,
  kDeviceToHost,
  kHostCompute,
  kStorageRead,
  kStorageWrite
};
enum class LaneOrder : uint8_t { kFifo, kPriority };
enum class TaskKind : uint8_t {
  kForward,
  kBackward,
  kRecover,  // one layer of one micro-batch
  kSend,
  kReceive,   // stage-boundary transfers
  kGradFold,  // one gradient buffer of this rank is added to another
  kGradSync,  // gradients are summed over a communicator
  kGradNorm,  // squares of this rank's gradients
  kNormSync,  // loss, valid tokens and squares of all ranks: clip factor, skip decision
  kUpdateShard,
  kPrefetchWeights,  // optimizer; working weights from the master copy
  kOffload,
  kReload
};  // device to host, host to device
// What a buffer is to the task that uses it.
enum class Role : uint8_t {
  kInput,
  kOutput,
  kWeights,
  kSharedWeights,
  kGradient,
  kSharedGradient,
  kSaved,
  kTemporary,
  kMaster,
  kMoment1,
  kMoment2,
  kLoss,
  kNorms,
  kControl,
  kCarry  // of a sequence cut into segments: key, value, and the accumulators of their gradients
};

// -1: not applicable. Layer 0 is the embedding, the last layer the head.
struct Coordinates {
  int16_t rank = -1, device = -1, phase = -1, stage = -1, layer_begin = -1, layer_end = -1, micro_batch = -1,
          segment = -1;
};

// `distance`: which version is read, in steps back; as many steps as the buffer has versions only where this
// step has not yet written it. `index`: which one, where a role has several (saved tensors).
struct Use {
  BufferId buffer = kNone;
  Access access = Access::kRead;
  Role role = Role::kInput;
  int16_t index = 0;
  int16_t distance = 0;
};

struct Edge {
  TaskId producer = kNone;
  int32_t distance = 0;  // in steps: the producer's instance of step t - distance
};

struct Task {
  TaskKind kind = TaskKind::kForward;
  Coordinates at;
  LaneId lane = kNone;
  std::vector<Use> uses;
  std::vector<Edge> after;
  int priority = 0;
  uint64_t random_key = 0;
  int communicator = kNone;    // for collectives: a CommunicatorId; for transfers: the peer's rank
  int64_t bytes = 0;           // moved by transfers and collectives
  BufferId predicate = kNone;  // control buffer: the task does nothing when the step is skipped
  // The task that does this one's work itself, as one instance, when it is next and this one has not started.
  TaskId absorber = kNone;
};

struct Buffer {
  std::string name;
  int64_t bytes = 0;
  Tier tier = Tier::kMedium;
  Space space = Space::kDevice;
  int16_t rank = -1, device = -1;
  int16_t versions = 1;     // step t uses slot t mod versions
  bool persistent = false;  // content outlives the step
  int64_t offset = kNone;   // in the arena of (rank, space, tier), given by place_memory; slots are adjacent
};

struct Lane {
  LaneKind kind = LaneKind::kCompute;
  LaneOrder order = LaneOrder::kFifo;
  int16_t rank = -1, device = -1;
  int link_group = kNone;
  bool yields = false;          // starts no chunk while a stage-boundary send of its rank is under way
  std::vector<TaskId> program;  // its tasks in program order
};

enum CommunicatorId : int { kDataParallel = 0, kTiedEmbedding = 1, kWorld = 2 };

bool is_main_path(TaskKind kind);
const char* name_of(TaskKind kind);
const char* name_of(LaneKind kind);
const char* name_of(Tier tier);
// In timelines: "compute", or "compute 1" of the rank's device 1.
std::string track_of(const Lane& lane);

// Immutable once built. `sequence` is the order in which the program's tasks would run on one thread; edges
// follow from it and from buffer uses.
struct StepGraph {
  std::vector<Task> tasks;
  std::vector<Buffer> buffers;
  std::vector<Lane> lanes;
  std::vector<TaskId> sequence;
  int period = 1;
  int max_distance = 0;
  std::string provenance;  // front end and passes

  uint64_t hash() const;
  std::string describe(TaskId task) const;  // "Forward layer 3 micro-batch 1 (rank 0)"
  const Use* find(const Task& task, Role role, int index = 0) const;
  int64_t slot_bytes(const Buffer& buffer) const { return (buffer.bytes + 63) / 64 * 64; }
};

// Front ends and passes write through this; `build` derives the edges.
class StepGraphBuilder {
 public:
  LaneId add_lane(Lane lane);
  BufferId add_buffer(Buffer buffer);
  // Appends at the end of the program, or before a task already in it.
  TaskId append(Task task);
  TaskId insert_before(TaskId position, Task task);
  // Moves tasks of the program: each `moves` pair's first goes right behind its second, in the order given.
  void move_behind(const std::vector<std::pair<TaskId, TaskId>>& moves);

  Task& task(TaskId id) { return graph_.tasks[static_cast<size_t>(id)]; }
  Lane& lane_of(const Task& task) { return graph_.lanes[static_cast<size_t>(task.lane)]; }
  Buffer& buffer(BufferId id) { return graph_.buffers[static_cast<size_t>(id)]; }
  const std::vector<TaskId>& sequence() const { return graph_.sequence; }
  const StepGraph& draft() const { return graph_; }
  // The lane of this kind on a rank's device; added at first use.
  LaneId lane(int rank, LaneKind kind, int device = 0);
  void record_pass(const std::string& name);
  void set_period(int steps) { graph_.period = steps; }

  StepGraph build();

 private:
  StepGraph graph_;
};

}  // namespace trainer
