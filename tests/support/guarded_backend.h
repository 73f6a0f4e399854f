// Host kernels on a guarded device, and what a rank needs to train on it.
#pragma once

#include "app/backend.h"
#include "comm/collectives.h"
#include "comm/staged_communicator.h"
#include "support/guarded_channels.h"

namespace trainer::testing {

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
  void linear_backward_weight(float* dw, ConstRef dy, ConstRef x, int64_t m, int64_t n, int64_t k,
                              bool accumulate) override {
    reach(dw, dy, x);
    later([=](KernelSet& kernels) { kernels.linear_backward_weight(dw, dy, x, m, n, k, accumulate); });
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

inline RankBackend guarded_backend(
    std::shared_ptr<GuardedDevice> device = std::make_shared<GuardedDevice>(),
    const std::function<std::unique_ptr<KernelSet>()>& make_kernels = [] { return make_host_kernels(1); }) {
  RankBackend backend;
  GuardedDevice& d = *device;
  backend.device = std::move(device);
  backend.kernels = std::make_unique<GuardedKernels>(make_kernels(), d, d.compute());
  backend.transfer_kernels = std::make_unique<GuardedKernels>(make_kernels(), d, d.transfers());
  backend.transport = [&d](std::unique_ptr<Communicator> group, DeviceQueue& queue) {
    return stage_through_host(std::move(group), d, queue);
  };
  return backend;
}

// Makes the backends of ranks whose messages pass from device to device. Outlives them.
class ChannelHubs {
 public:
  RankBackend backend() {
    RankBackend backend = guarded_backend();
    auto& device = static_cast<GuardedDevice&>(*backend.device);
    backend.transport = [this, &device](std::unique_ptr<Communicator> group, DeviceQueue&) {
      ChannelHub* hub = group->rank() == 0 ? &make() : nullptr;
      broadcast(*group, &hub, sizeof hub, 0);
      return match_over_channels(std::move(group), [hub, &device](const Communicator& of) {
        return std::make_unique<GuardedChannels>(*hub, device, of.rank());
      });
    };
    return backend;
  }

 private:
  ChannelHub& make() {
    const std::lock_guard lock(mutex_);
    return hubs_.emplace_back();
  }

  std::mutex mutex_;
  std::deque<ChannelHub> hubs_;
};

}  // namespace trainer::testing
