#include "schedule/memory.h"

#include <algorithm>
#include <iterator>
#include <tuple>

#include "base/error.h"

namespace trainer {
namespace {

struct Lifetime {
  size_t begin = SIZE_MAX, end = 0;  // positions in the program, inclusive
  TaskId first = kNone;
  std::vector<TaskId> last;  // the last user on each lane that keeps the program's order, all on others
  bool used() const { return first != kNone; }
};

// What is sent keeps its place until the next message of its lane has gone: the task behind a Send does not
// wait for the peer.
void keep_until_next_send(const StepGraph& graph, std::vector<Lifetime>& life) {
  std::vector<size_t> position(graph.tasks.size());
  for (size_t i = 0; i < graph.sequence.size(); ++i) position[static_cast<size_t>(graph.sequence[i])] = i;
  for (const Lane& lane : graph.lanes)
    for (size_t i = 0; i + 1 < lane.program.size(); ++i) {
      const Task& task = graph.tasks[static_cast<size_t>(lane.program[i])];
      if (task.kind != TaskKind::kSend) continue;
      const size_t next = position[static_cast<size_t>(lane.program[i + 1])];
      for (const Use& use : task.uses) {
        size_t& end = life[static_cast<size_t>(use.buffer)].end;
        end = std::max(end, next);
      }
    }
}

std::vector<Lifetime> lifetimes(const StepGraph& graph) {
  std::vector<Lifetime> result(graph.buffers.size());
  for (size_t position = 0; position < graph.sequence.size(); ++position) {
    const TaskId id = graph.sequence[position];
    for (const Use& use : graph.tasks[static_cast<size_t>(id)].uses) {
      Lifetime& life = result[static_cast<size_t>(use.buffer)];
      if (!life.used()) {
        life.begin = position;
        life.first = id;
      }
      life.end = position;
      const LaneId lane = graph.tasks[static_cast<size_t>(id)].lane;
      if (graph.lanes[static_cast<size_t>(lane)].order == LaneOrder::kFifo)
        std::erase_if(life.last,
                      [&](TaskId other) { return graph.tasks[static_cast<size_t>(other)].lane == lane; });
      life.last.push_back(id);
    }
  }
  keep_until_next_send(graph, result);
  return result;
}

// A buffer of several versions is there so that steps may overlap; sharing its addresses would order them
// again.
bool keeps_its_place(const Buffer& buffer, const Lifetime& life) {
  return buffer.persistent || buffer.versions > 1 || !life.used();
}

bool on_device_of(const Buffer& buffer, int rank) {
  return buffer.rank == rank && buffer.space == Space::kDevice;
}

// By tier, on the devices of a rank, at each position of the program.
std::vector<TierBytes> bytes_in_use(const StepGraph& graph, const std::vector<Lifetime>& life, int rank) {
  std::vector<TierBytes> bytes(graph.sequence.size() + 1);  // changes, then sums of them
  for (size_t b = 0; b < graph.buffers.size(); ++b) {
    const Buffer& buffer = graph.buffers[b];
    if (!on_device_of(buffer, rank)) continue;
    const auto tier = static_cast<size_t>(buffer.tier);
    const bool always = keeps_its_place(buffer, life[b]);
    bytes[always ? 0 : life[b].begin][tier] += graph.slot_bytes(buffer) * buffer.versions;
    if (!always) bytes[life[b].end + 1][tier] -= graph.slot_bytes(buffer) * buffer.versions;
  }
  for (size_t position = 1; position < bytes.size(); ++position)
    for (size_t tier = 0; tier < kTierCount; ++tier) bytes[position][tier] += bytes[position - 1][tier];
  bytes.pop_back();
  return bytes;
}

// One arena while the program is walked: free ranges, and which buffer lay last in each range.
class Arena {
 public:
  explicit Arena(int64_t base) : base_(base), end_(base) {}

  // First fit; grows the arena when nothing fits.
  int64_t allocate(int64_t bytes) {
    for (auto it = free_.begin(); it != free_.end(); ++it)
      if (it->second >= bytes) {
        const int64_t offset = it->first, left = it->second - bytes;
        free_.erase(it);
        if (left > 0) free_[offset + bytes] = left;
        return offset;
      }
    if (!free_.empty()) {
      // The last free range may touch the end; grow from there.
      const auto last = std::prev(free_.end());
      if (last->first + last->second == end_) {
        const int64_t offset = last->first;
        free_.erase(last);
        end_ = offset + bytes;
        return offset;
      }
    }
    const int64_t offset = end_;
    end_ += bytes;
    return offset;
  }

  void release(int64_t offset, int64_t bytes) {
    auto it = free_.emplace(offset, bytes).first;
    if (const auto next = std::next(it); next != free_.end() && it->first + it->second == next->first) {
      it->second += next->second;
      free_.erase(next);
    }
    if (it != free_.begin())
      if (const auto before = std::prev(it); before->first + before->second == it->first) {
        before->second += it->second;
        free_.erase(it);
      }
  }

  // Buffers whose content was last in [offset, offset + bytes) are replaced there by `buffer`. Returns them;
  // kNone stands for addresses not used before in this step.
  std::vector<BufferId> occupy(int64_t offset, int64_t bytes, BufferId buffer) {
    std::vector<BufferId> owners;
    int64_t covered = offset;
    for (const auto& [begin, end, owner] : cut(offset, offset + bytes)) {
      if (begin > covered) owners.push_back(kNone);
      owners.push_back(owner);
      covered = end;
    }
    if (covered < offset + bytes) owners.push_back(kNone);
    owners_[offset] = {offset + bytes, buffer};
    return owners;
  }

  std::vector<BufferId> owners_in(int64_t offset, int64_t bytes) const {
    std::vector<BufferId> owners;
    for (const auto& [begin, range] : owners_)
      if (begin < offset + bytes && range.first > offset) owners.push_back(range.second);
    return owners;
  }

  int64_t size() const { return end_; }

 private:
  // Removes [from, to) from the ownership map and returns the removed pieces in order.
  std::vector<std::tuple<int64_t, int64_t, BufferId>> cut(int64_t from, int64_t to) {
    std::vector<std::tuple<int64_t, int64_t, BufferId>> pieces;
    auto it = owners_.lower_bound(from);
    if (it != owners_.begin() && std::prev(it)->second.first > from) --it;
    while (it != owners_.end() && it->first < to) {
      const int64_t begin = it->first, end = it->second.first;
      const BufferId owner = it->second.second;
      it = owners_.erase(it);
      if (begin < from) owners_[begin] = {from, owner};
      if (end > to) it = owners_.emplace(to, std::pair{end, owner}).first;
      pieces.emplace_back(std::max(begin, from), std::min(end, to), owner);
      if (end > to) break;
    }
    return pieces;
  }

  int64_t base_, end_;
  std::map<int64_t, int64_t> free_;                         // offset -> bytes
  std::map<int64_t, std::pair<int64_t, BufferId>> owners_;  // begin -> (end, buffer)
};

void add_reuse_edges(StepGraph& graph, const std::vector<Lifetime>& life, BufferId old_content, BufferId next,
                     int distance) {
  const TaskId first = life[static_cast<size_t>(next)].first;
  Task& consumer = graph.tasks[static_cast<size_t>(first)];
  for (TaskId user : life[static_cast<size_t>(old_content)].last) {
    const LaneId lane = graph.tasks[static_cast<size_t>(user)].lane;
    const bool in_order =
        lane == consumer.lane && graph.lanes[static_cast<size_t>(lane)].order == LaneOrder::kFifo;
    if (in_order || (user == first && distance == 0)) continue;
    const auto same = [&](const Edge& e) { return e.producer == user && e.distance == distance; };
    if (std::none_of(consumer.after.begin(), consumer.after.end(), same))
      consumer.after.push_back({user, distance});
  }
}

void place_arena(StepGraph& graph, const std::vector<Lifetime>& life, const std::vector<BufferId>& members) {
  int64_t base = 0;
  std::vector<BufferId> shared;
  // What outlives the step comes first: other graphs lay their own buffers over all that follows.
  for (bool persistent : {true, false})
    for (BufferId id : members) {
      Buffer& buffer = graph.buffers[static_cast<size_t>(id)];
      if (buffer.persistent != persistent) continue;
      if (keeps_its_place(buffer, life[static_cast<size_t>(id)])) {
        buffer.offset = base;
        base += graph.slot_bytes(buffer) * buffer.versions;
      } else {
        shared.push_back(id);
      }
    }
  std::sort(shared.begin(), shared.end(), [&](BufferId a, BufferId b) {
    return std::pair(life[static_cast<size_t>(a)].begin, a) <
           std::pair(life[static_cast<size_t>(b)].begin, b);
  });
  Arena arena(base);
  std::multimap<size_t, BufferId> ends;  // position of last use -> buffer
  std::vector<BufferId> opens_step;      // lie on addresses that nothing used earlier in the step
  for (BufferId id : shared) {
    Buffer& buffer = graph.buffers[static_cast<size_t>(id)];
    const int64_t bytes = std::max<int64_t>(graph.slot_bytes(buffer), 64) * buffer.versions;
    while (!ends.empty() && ends.begin()->first < life[static_cast<size_t>(id)].begin) {
      const Buffer& done = graph.buffers[static_cast<size_t>(ends.begin()->second)];
      arena.release(done.offset, std::max<int64_t>(graph.slot_bytes(done), 64) * done.versions);
      ends.erase(ends.begin());
    }
    buffer.offset = arena.allocate(bytes);
    ends.emplace(life[static_cast<size_t>(id)].end, id);
    bool opens = false;
    for (BufferId owner : arena.occupy(buffer.offset, bytes, id)) {
      if (owner == kNone)
        opens = true;
      else
        add_reuse_edges(graph, life, owner, id, 0);
    }
    if (opens) opens_step.push_back(id);
  }
  for (BufferId id : opens_step) {
    const Buffer& buffer = graph.buffers[static_cast<size_t>(id)];
    for (BufferId owner : arena.owners_in(buffer.offset, graph.slot_bytes(buffer) * buffer.versions))
      add_reuse_edges(graph, life, owner, id, 1);
  }
}

}  // namespace

StepGraph place_memory(StepGraph graph) {
  const auto life = lifetimes(graph);
  std::map<std::pair<int, ArenaKey>, std::vector<BufferId>> arenas;
  for (size_t b = 0; b < graph.buffers.size(); ++b) {
    const Buffer& buffer = graph.buffers[b];
    arenas[{buffer.rank, arena_of(buffer)}].push_back(static_cast<BufferId>(b));
  }
  for (const auto& [key, members] : arenas) place_arena(graph, life, members);
  for (const Task& task : graph.tasks)
    for (const Edge& edge : task.after) graph.max_distance = std::max(graph.max_distance, edge.distance);
  return graph;
}

ArenaKey arena_of(const Buffer& buffer) {
  return {std::max<int16_t>(buffer.device, 0), buffer.space, buffer.tier};
}

std::map<ArenaKey, int64_t> arena_sizes(const StepGraph& graph, int rank) {
  std::map<ArenaKey, int64_t> sizes;
  for (const Buffer& buffer : graph.buffers) {
    if (buffer.rank != rank) continue;
    require(buffer.offset != kNone, "buffer '{}' has no place", buffer.name);
    int64_t& arena = sizes[arena_of(buffer)];
    arena = std::max(arena, buffer.offset + graph.slot_bytes(buffer) * buffer.versions);
  }
  return sizes;
}

TierBytes arena_bytes(const StepGraph& graph, int rank, Space space) {
  TierBytes bytes{};
  for (const auto& [key, size] : arena_sizes(graph, rank))
    if (key.space == space) bytes[static_cast<size_t>(key.tier)] += size;
  return bytes;
}

std::vector<MemoryStep> memory_over_program(const StepGraph& graph, int rank) {
  const auto in_use = bytes_in_use(graph, lifetimes(graph), rank);
  std::vector<MemoryStep> steps;
  for (size_t position = 0; position < graph.sequence.size(); ++position) {
    const TaskId id = graph.sequence[position];
    if (graph.tasks[static_cast<size_t>(id)].at.rank == rank) steps.push_back({id, in_use[position]});
  }
  return steps;
}

std::array<std::vector<BufferId>, kTierCount> in_use_when_fullest(const StepGraph& graph, int rank) {
  const auto life = lifetimes(graph);
  const auto bytes = bytes_in_use(graph, life, rank);
  std::array<size_t, kTierCount> fullest{};
  for (size_t position = 0; position < bytes.size(); ++position)
    for (size_t tier = 0; tier < kTierCount; ++tier)
      if (bytes[position][tier] > bytes[fullest[tier]][tier]) fullest[tier] = position;
  std::array<std::vector<BufferId>, kTierCount> in_use;
  for (size_t b = 0; b < graph.buffers.size(); ++b) {
    const Buffer& buffer = graph.buffers[b];
    if (!on_device_of(buffer, rank)) continue;
    const auto tier = static_cast<size_t>(buffer.tier);
    const bool there = life[b].begin <= fullest[tier] && fullest[tier] <= life[b].end;
    if (there || keeps_its_place(buffer, life[b])) in_use[tier].push_back(static_cast<BufferId>(b));
  }
  return in_use;
}

}  // namespace trainer
