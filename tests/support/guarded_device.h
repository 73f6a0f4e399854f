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

#include "app/backend.h"
#include "base/error.h"
#include "comm/staged_communicator.h"
#include "device/arena.h"

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
  std::atomic<int64_t> copies_ = 0, pinned_allocations_ = 0;
  Queue compute_{*this}, transfers_{*this};
};

// Host kernels as those of a queue of the device.
class GuardedKernels final : public KernelSet {
 public:
  GuardedKernels(std::unique_ptr<KernelSet> inner, GuardedDevice& device, DeviceQueue& queue)
      : inner_(std::move(inner)), device_(device), queue_(queue) {}

  std::string name() const override { return inner_->name(); }
  size_t workspace_bytes(const WorkspaceShape& shape) const override {
    return inner_->workspace_bytes(shape);
  }
  void grant_workspace(std::span<std::byte> workspace) override {
    device_.require_reachable(workspace.data(), workspace.size());
    inner_->grant_workspace(workspace);
  }

  void linear_forward(Ref y, ConstRef x, ConstRef w, ConstRef bias, int64_t m, int64_t n,
                      int64_t k) override {
    reach(y, x, w, bias);
    later([=](KernelSet& kernels) { kernels.linear_forward(y, x, w, bias, m, n, k); });
  }
  void linear_backward_input(Ref dx, ConstRef dy, ConstRef w, int64_t m, int64_t n, int64_t k,
                             bool accumulate) override {
    reach(dx, dy, w);
    later([=](KernelSet& kernels) { kernels.linear_backward_input(dx, dy, w, m, n, k, accumulate); });
  }
  void linear_backward_weight(float* dw, ConstRef dy, ConstRef x, int64_t m, int64_t n, int64_t k) override {
    reach(dw, dy, x);
    later([=](KernelSet& kernels) { kernels.linear_backward_weight(dw, dy, x, m, n, k); });
  }
  void bias_backward(float* db, ConstRef dy, int64_t m, int64_t n) override {
    reach(db, dy);
    later([=](KernelSet& kernels) { kernels.bias_backward(db, dy, m, n); });
  }
  void embedding_forward(Ref y, const int32_t* tokens, ConstRef table, const int32_t* positions,
                         ConstRef position_table, int64_t count, int64_t hidden) override {
    reach(y, tokens, table, positions, position_table);
    later([=](KernelSet& kernels) {
      kernels.embedding_forward(y, tokens, table, positions, position_table, count, hidden);
    });
  }
  void embedding_backward(float* dtable, const int32_t* tokens, float* dposition, const int32_t* positions,
                          ConstRef dy, int64_t count, int64_t hidden) override {
    reach(dtable, tokens, dposition, positions, dy);
    later([=](KernelSet& kernels) {
      kernels.embedding_backward(dtable, tokens, dposition, positions, dy, count, hidden);
    });
  }
  void norm_forward(const NormForward& a) override {
    reach(a.x, a.delta, a.sum, a.weight, a.bias, a.y, a.mean, a.reciprocal);
    later([=](KernelSet& kernels) { kernels.norm_forward(a); });
  }
  void norm_backward(const NormBackward& a) override {
    reach(a.x, a.weight, a.dy, a.mean, a.reciprocal, a.dresidual, a.dx, a.dweight, a.dbias);
    later([=](KernelSet& kernels) { kernels.norm_backward(a); });
  }
  void rope(Ref out, ConstRef in, const RopeArguments& a) override {
    reach(out, in, a.positions, a.cosine, a.sine);
    later([=](KernelSet& kernels) { kernels.rope(out, in, a); });
  }
  void swiglu_forward(Ref y, ConstRef gate_up, int64_t tokens, int64_t ffn) override {
    reach(y, gate_up);
    later([=](KernelSet& kernels) { kernels.swiglu_forward(y, gate_up, tokens, ffn); });
  }
  void swiglu_backward(Ref dgate_up, ConstRef dy, ConstRef gate_up, int64_t tokens, int64_t ffn) override {
    reach(dgate_up, dy, gate_up);
    later([=](KernelSet& kernels) { kernels.swiglu_backward(dgate_up, dy, gate_up, tokens, ffn); });
  }
  void gelu_forward(Ref y, ConstRef x, int64_t count, bool exact) override {
    reach(y, x);
    later([=](KernelSet& kernels) { kernels.gelu_forward(y, x, count, exact); });
  }
  void gelu_backward(Ref dx, ConstRef dy, ConstRef x, int64_t count, bool exact) override {
    reach(dx, dy, x);
    later([=](KernelSet& kernels) { kernels.gelu_backward(dx, dy, x, count, exact); });
  }
  void attention_forward(Ref out, float* log_sum_exp, ConstRef q, ConstRef k, ConstRef v,
                         const AttentionShape& s) override {
    reach(out, log_sum_exp, q, k, v);
    with_documents(s, [=](KernelSet& kernels, const AttentionShape& shape) {
      kernels.attention_forward(out, log_sum_exp, q, k, v, shape);
    });
  }
  void attention_backward(Ref dq, float* dk, float* dv, ConstRef dout, ConstRef out, const float* log_sum_exp,
                          ConstRef q, ConstRef k, ConstRef v, const AttentionShape& s) override {
    reach(dq, dk, dv, dout, out, log_sum_exp, q, k, v);
    with_documents(s, [=](KernelSet& kernels, const AttentionShape& shape) {
      kernels.attention_backward(dq, dk, dv, dout, out, log_sum_exp, q, k, v, shape);
    });
  }
  // Its result is for the host, so it waits. A group's exchanges within it use the queue.
  ClassifierResult classifier(const Classifier& a) override {
    reach(a.x, a.weight, a.labels, a.dx, a.dweight, a.token_losses);
    queue_.synchronise();
    const GuardedDevice::Open open(device_);
    return inner_->classifier(a);
  }
  void adamw(const AdamW& a) override {
    reach(a.master, a.moment1, a.moment2, a.working, a.gradient);
    later([=](KernelSet& kernels) { kernels.adamw(a); });
  }
  void block_squares(double* squares, const float* x, int64_t count) override {
    reach(squares, x);
    later([=](KernelSet& kernels) { kernels.block_squares(squares, x, count); });
  }
  void fill_zero(void* data, size_t bytes) override {
    device_.require_reachable(data, bytes);
    later([=](KernelSet& kernels) { kernels.fill_zero(data, bytes); });
  }
  void convert(Ref to, ConstRef from, int64_t count) override {
    reach(to, from);
    later([=](KernelSet& kernels) { kernels.convert(to, from, count); });
  }
  void convert_rows(Ref to, int64_t to_stride, ConstRef from, int64_t from_stride, int64_t rows,
                    int64_t columns) override {
    reach(to, from);
    later([=](KernelSet& kernels) { kernels.convert_rows(to, to_stride, from, from_stride, rows, columns); });
  }
  void add(Ref y, ConstRef x, int64_t count) override {
    reach(y, x);
    later([=](KernelSet& kernels) { kernels.add(y, x, count); });
  }

 private:
  static const void* address(const void* data) { return data; }
  static const void* address(const Ref& ref) { return ref.data; }
  static const void* address(const ConstRef& ref) { return ref.data; }
  template <class... Arguments>
  void reach(const Arguments&... arguments) {
    (device_.require_reachable(address(arguments)), ...);
  }
  template <class Work>
  void later(Work work) {
    device_.put(queue_, [this, work] { work(*inner_); });
  }
  // The document starts are host memory and need not outlive the call.
  template <class Work>
  void with_documents(const AttentionShape& s, Work work) {
    const std::vector<int32_t> starts(s.document_starts.begin(), s.document_starts.end());
    later([s, starts, work](KernelSet& kernels) {
      AttentionShape shape = s;
      shape.document_starts = starts;
      work(kernels, shape);
    });
  }

  std::unique_ptr<KernelSet> inner_;
  GuardedDevice& device_;
  DeviceQueue& queue_;
};

inline Backend guarded_backend(std::shared_ptr<GuardedDevice> device = std::make_shared<GuardedDevice>()) {
  Backend backend;
  GuardedDevice& d = *device;
  backend.device = std::move(device);
  backend.kernels = std::make_unique<GuardedKernels>(make_host_kernels(1), d, d.compute());
  backend.transfer_kernels = std::make_unique<GuardedKernels>(make_host_kernels(1), d, d.transfers());
  backend.transport = [&d](std::unique_ptr<Communicator> group, DeviceQueue& queue) {
    return stage_through_host(std::move(group), d, queue);
  };
  return backend;
}

}  // namespace trainer::testing
