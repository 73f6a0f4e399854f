// A device without hardware: its memory is host memory that faults when touched, except while the device
// works; its queues work as late as they may. Host code that reaches into it, forgets to wait, or hands
// kernels what they could not reach, fails.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>

#include "base/error.h"
#include "device/device.h"

namespace trainer::testing {

class GuardedDevice final : public Device {
 public:
  std::string name() const override { return "guarded"; }
  DeviceMemoryPtr allocate(size_t bytes) override { return std::make_unique<Memory>(*this, bytes, true); }
  DeviceMemoryPtr allocate_pinned(size_t bytes) override {
    return std::make_unique<Memory>(*this, bytes, false);
  }
  DeviceQueue& compute() override { return compute_; }
  DeviceQueue& transfers() override { return transfers_; }

  // Puts work into a queue, in order with its copies; `flush` does all of it.
  void put(DeviceQueue& queue, std::function<void()> work) { queue_of(queue).put(std::move(work)); }

  // Throws unless all of it is memory of the device, or pinned.
  void require_reachable(const void* data, size_t bytes = 1) {
    const std::lock_guard lock(mutex_);
    if (data) require(find(data, bytes) != blocks_.end(), "a kernel is given memory that it does not reach");
  }
  // While one lives the host reaches the memory: the device is at work.
  class Open {
   public:
    explicit Open(GuardedDevice& device) : device_(device) { device_.change_open(1); }
    ~Open() { device_.change_open(-1); }
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;

   private:
    GuardedDevice& device_;
  };

  int64_t copies() const { return copies_; }
  int64_t pinned_allocations() const { return pinned_allocations_; }
  // Waits for an event behind which there was more work in its queue, which it left undone.
  int64_t waits_with_more_behind() const { return waits_with_more_behind_; }

 private:
  struct Block {
    size_t bytes = 0;
    bool guarded = false;
  };

  class Memory final : public DeviceMemory {
   public:
    Memory(GuardedDevice& device, size_t bytes, bool guarded) : device_(device) {
      constexpr size_t kPage = 4096;
      mapped_ = std::max<size_t>((bytes + kPage - 1) / kPage * kPage, kPage);
      void* map = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      require(map != MAP_FAILED, "no memory for a guarded device");
      bytes_ = {static_cast<std::byte*>(map), bytes};
      device_.add(map, {mapped_, guarded});
    }
    ~Memory() override {
      device_.remove(bytes_.data());
      ::munmap(bytes_.data(), mapped_);
    }

   private:
    GuardedDevice& device_;
    size_t mapped_ = 0;
  };

  class Queue final : public DeviceQueue {
   public:
    explicit Queue(GuardedDevice& device) : device_(device) {}
    bool host_reaches() const override { return false; }
    void copy_in(void* device, const void* host, size_t bytes) override {
      require(!device_.guards(host), "copied in from memory of the device");
      move(device, host, bytes, device);
    }
    void copy_out(void* host, const void* device, size_t bytes) override {
      require(!device_.guards(host), "copied out to memory of the device");
      move(host, device, bytes, device);
    }
    void copy(void* to, const void* from, size_t bytes) override {
      device_.require_reachable(to, bytes);
      move(to, from, bytes, from);
    }
    DeviceEventPtr record() override { return std::make_unique<Event>(*this, done_ + pending_.size()); }
    void synchronise() override { run_to(done_ + pending_.size()); }
    void put(std::function<void()> work) {
      const Turn turn(busy_);
      pending_.push_back(std::move(work));
    }

   private:
    class Turn {
     public:
      explicit Turn(std::atomic<bool>& busy) : busy_(busy) {
        require(!busy_.exchange(true), "two threads use a queue at once");
      }
      ~Turn() { busy_ = false; }

     private:
      std::atomic<bool>& busy_;
    };

    // Looked at twice before it is reached.
    class Event final : public DeviceEvent {
     public:
      Event(Queue& queue, size_t position) : queue_(queue), position_(position) {}
      bool reached() override {
        if (queue_.done_ >= position_) return true;
        if (!looked_at_) return looked_at_ = true, false;
        queue_.run_to(position_);
        return true;
      }
      void wait() override {
        queue_.run_to(position_);
        if (!queue_.pending_.empty()) ++queue_.device_.waits_with_more_behind_;
      }

     private:
      Queue& queue_;
      size_t position_;
      bool looked_at_ = false;
    };

    void move(void* to, const void* from, size_t bytes, const void* of_device) {
      device_.require_reachable(of_device, bytes);
      ++device_.copies_;
      put([=] {
        if (bytes > 0) std::memcpy(to, from, bytes);
      });
    }
    void run_to(size_t position) {
      const Turn turn(busy_);
      if (done_ >= position) return;
      const Open open(device_);
      while (done_ < position) {
        pending_.front()();
        pending_.pop_front();
        ++done_;
      }
    }

    GuardedDevice& device_;
    std::deque<std::function<void()>> pending_;
    size_t done_ = 0;
    std::atomic<bool> busy_ = false;
  };

  using Blocks = std::map<const std::byte*, Block>;

  Queue& queue_of(DeviceQueue& queue) { return &queue == &compute_ ? compute_ : transfers_; }
  Blocks::iterator find(const void* data, size_t bytes) {
    const auto* begin = static_cast<const std::byte*>(data);
    auto next = blocks_.upper_bound(begin);
    if (next == blocks_.begin()) return blocks_.end();
    --next;
    return begin + bytes <= next->first + next->second.bytes ? next : blocks_.end();
  }
  bool guards(const void* data) {
    const std::lock_guard lock(mutex_);
    const auto found = find(data, 1);
    return found != blocks_.end() && found->second.guarded;
  }
  static void protect(const std::byte* begin, const Block& block, bool open) {
    if (block.guarded)
      ::mprotect(const_cast<std::byte*>(begin), block.bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE);
  }
  void add(void* begin, const Block& block) {
    const std::lock_guard lock(mutex_);
    blocks_[static_cast<const std::byte*>(begin)] = block;
    if (!block.guarded) ++pinned_allocations_;
    protect(static_cast<const std::byte*>(begin), block, open_ > 0);
  }
  void remove(const std::byte* begin) {
    const std::lock_guard lock(mutex_);
    blocks_.erase(begin);
  }
  void change_open(int by) {
    const std::lock_guard lock(mutex_);
    const bool before = open_ > 0;
    open_ += by;
    if (before == (open_ > 0)) return;
    for (const auto& [begin, block] : blocks_) protect(begin, block, open_ > 0);
  }

  std::mutex mutex_;
  Blocks blocks_;  // guarded by mutex_, as the next
  int open_ = 0;
  std::atomic<int64_t> copies_ = 0, pinned_allocations_ = 0, waits_with_more_behind_ = 0;
  Queue compute_{*this}, transfers_{*this};
};

}  // namespace trainer::testing
