// Work whose result depends on everything a task reads, and on nothing else: any wrong order, address or
// version changes what is left in the persistent buffers.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/hash.h"
#include "comm/in_process.h"
#include "runtime/kernel_binder.h"
#include "runtime/rank_memory.h"

namespace trainer::testing {

// Complete at the `polls`-th test.
class SlowRequest : public Request {
 public:
  explicit SlowRequest(int polls) : polls_(polls) {}
  bool test() override { return --polls_ <= 0; }

 private:
  int polls_;
};

class ToyBinder : public KernelBinder {
 public:
  // `boundary` may be null where the program has no transfers. Tasks take up to `longest`, at random.
  ToyBinder(const StepGraph& graph, int rank, Communicator* boundary, uint64_t seed = 0,
            std::chrono::microseconds longest = {})
      : memory_(graph, {}, rank), rank_(rank), boundary_(boundary), seed_(seed), longest_(longest) {}

  RequestPtr start(const StepGraph& graph, Instance instance) override {
    const Task& task = graph.tasks[static_cast<size_t>(instance.task)];
    delay(instance);
    if (task.kind == TaskKind::kSend || task.kind == TaskKind::kReceive) {
      const LaneKind lane = graph.lanes[static_cast<size_t>(task.lane)].kind;
      const int tag = lane == LaneKind::kSendForward || lane == LaneKind::kReceiveForward ? 1 : 2;
      std::byte* data = memory_.address(graph, task.uses.front().buffer, instance.step);
      const auto bytes = static_cast<size_t>(task.bytes);
      return task.kind == TaskKind::kSend ? boundary_->send(data, bytes, task.communicator, tag)
                                          : boundary_->receive(data, bytes, task.communicator, tag);
    }
    mix(graph, task, instance);
    if (graph.lanes[static_cast<size_t>(task.lane)].kind == LaneKind::kCollective)
      return std::make_unique<SlowRequest>(static_cast<int>(seed_ % 5));
    return nullptr;
  }
  void finish(const StepGraph&, Instance) override {}

  // The content of the persistent buffers, by name.
  std::map<std::string, std::vector<std::byte>> state(const StepGraph& graph) const {
    std::map<std::string, std::vector<std::byte>> result;
    for (size_t b = 0; b < graph.buffers.size(); ++b) {
      const Buffer& buffer = graph.buffers[b];
      if (buffer.rank != rank_ || !buffer.persistent) continue;
      for (int v = 0; v < buffer.versions; ++v) {
        const std::byte* data = memory_.address(graph, static_cast<BufferId>(b), v);
        result[buffer.name + " version " + std::to_string(v)] = {data, data + looked_at(buffer)};
      }
    }
    return result;
  }
  const RankMemory& memory() const { return memory_; }

 private:
  // Bytes that count; staging buffers are large and nothing but scratch.
  static int64_t looked_at(const Buffer& buffer) { return std::min<int64_t>(buffer.bytes, 1024); }

  void delay(Instance instance) const {
    if (longest_.count() == 0) return;
    std::mt19937_64 random(seed_ * 1000003 + static_cast<uint64_t>(instance.task * 31 + instance.step));
    if (random() % 4 == 0)
      std::this_thread::sleep_for(
          std::chrono::microseconds(random() % static_cast<uint64_t>(longest_.count())));
  }

  void mix(const StepGraph& graph, const Task& task, Instance instance) {
    Hasher read;
    read.add(task.kind)
        .add(instance.step)
        .add(task.at.rank)
        .add(task.at.layer_begin)
        .add(task.at.micro_batch);
    for (const Use& use : task.uses)
      if (use.access != Access::kWrite) {
        const std::byte* data = memory_.address(graph, use.buffer, instance.step, use.distance);
        read.add(hash_of(data, looked_at(graph.buffers[static_cast<size_t>(use.buffer)])));
      }
    for (const Use& use : task.uses)
      if (use.access != Access::kRead) {
        std::byte* data = memory_.address(graph, use.buffer, instance.step);
        const int64_t bytes = looked_at(graph.buffers[static_cast<size_t>(use.buffer)]);
        for (int64_t i = 0; i + 8 <= bytes; i += 8) {
          const uint64_t value =
              (read.value() + static_cast<uint64_t>(use.index)) * (2 * static_cast<uint64_t>(i) + 1);
          std::memcpy(data + i, &value, 8);
        }
      }
  }
  static uint64_t hash_of(const std::byte* data, int64_t bytes) {
    uint64_t sum = 0;
    for (int64_t i = 0; i + 8 <= bytes; i += 8) {
      uint64_t word;
      std::memcpy(&word, data + i, 8);
      sum = sum * 0x9e3779b97f4a7c15u + word;
    }
    return sum;
  }

  RankMemory memory_;
  int rank_;
  Communicator* boundary_;
  uint64_t seed_;
  std::chrono::microseconds longest_;
};

// A task of rank 0 on `lane`.
inline Task task_on(TaskKind kind, LaneId lane, std::vector<Use> uses = {}, int layer = -1) {
  Task t;
  t.kind = kind;
  t.lane = lane;
  t.at.rank = 0;
  t.at.layer_begin = static_cast<int16_t>(layer);
  t.at.layer_end = static_cast<int16_t>(layer < 0 ? -1 : layer + 1);
  t.uses = std::move(uses);
  return t;
}

inline Buffer buffer_of(const std::string& name, int64_t bytes, int versions = 1, bool persistent = false) {
  Buffer b;
  b.name = name;
  b.bytes = bytes;
  b.rank = 0;
  b.device = 0;
  b.versions = static_cast<int16_t>(versions);
  b.persistent = persistent;
  return b;
}

// Does what the test says.
class CallBinder : public KernelBinder {
 public:
  using Body = std::function<RequestPtr(const Task&, Instance)>;
  explicit CallBinder(Body body) : body_(std::move(body)) {}
  RequestPtr start(const StepGraph& graph, Instance instance) override {
    return body_(graph.tasks[static_cast<size_t>(instance.task)], instance);
  }
  void finish(const StepGraph&, Instance) override { ++finished; }
  std::atomic<int> finished{0};

 private:
  Body body_;
};

}  // namespace trainer::testing
