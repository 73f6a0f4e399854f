// Programs of one rank written by hand, in ways that no front end writes yet, and a binder that runs them:
// weights streamed from host memory to two devices in turn, sequences cut into segments, updates one step
// late.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "schedule/memory.h"
#include "support/tiny_grid.h"

namespace trainer::testing {

struct HandOptions {
  int micro_batches = 4;
  std::vector<int64_t> segments = {12};
  // Weights, gradients and boundary activations live in host memory. Every task is sent to the next of two
  // devices, whose two slots its weights are copied to beforehand; a block recovers its saved tensors there.
  bool streamed = false;
  // Step t + 1 computes with the weights that step t - 1 left behind.
  bool delayed = false;
};

inline constexpr int64_t kHandMicroBatch = 2, kHandSequence = 12;

// Writes the program of one step.
class HandWriter {
 public:
  HandWriter(const Model& model, const HandOptions& options, int64_t workspace_bytes)
      : model_(model), options_(options), devices_(options.streamed ? 2 : 1) {
    make_state(workspace_bytes);
  }

  StepGraph build() {
    const int segments = static_cast<int>(options_.segments.size());
    for (int m = 0; m < options_.micro_batches; ++m) {
      for (int s = 0; s < segments; ++s)
        for (int l = 0; l < layers(); ++l) forward(l, m, s);
      for (int s = segments; s-- > 0;)
        for (int l = layers(); l-- > 0;) backward(l, m, s);
    }
    for (int l = 0; l < layers(); ++l) update(l);
    builder_.record_pass("by hand");
    return place_memory(builder_.build());
  }

 private:
  using Key = std::array<int, 3>;  // layer, micro-batch, segment
  static constexpr int kSlots = 2;

  int layers() const { return model_.layer_count(); }
  bool is_block(int l) const { return l > 0 && l + 1 < layers(); }
  bool carried() const { return options_.segments.size() > 1; }
  Space store() const { return options_.streamed ? Space::kHost : Space::kDevice; }
  LayerCatalogue catalogue(int l, int s) const {
    return model_.layer(l).catalogue(kHandMicroBatch, options_.segments[static_cast<size_t>(s)], DType::kF32);
  }

  BufferId make(const std::string& name, int64_t bytes, Space space, int device = 0, bool persistent = false,
                int versions = 1) {
    Buffer b;
    b.name = name;
    b.bytes = bytes;
    b.tier = persistent ? Tier::kLong : Tier::kMedium;
    b.space = space;
    b.rank = 0;
    b.device = static_cast<int16_t>(space == Space::kDevice ? device : -1);
    b.persistent = persistent;
    b.versions = static_cast<int16_t>(versions);
    return builder_.add_buffer(std::move(b));
  }

  void make_state(int64_t workspace_bytes) {
    const int versions = options_.delayed ? 2 : 1;
    int64_t temporary = 0, largest = 0;
    for (int l = 0; l < layers(); ++l) {
      const int64_t bytes = model_.layer(l).block_size() * 4;
      largest = std::max(largest, bytes);
      for (int s = 0; s < static_cast<int>(options_.segments.size()); ++s)
        temporary = std::max(temporary, catalogue(l, s).temporary_bytes);
      masters_.push_back(make(fmt::format("master {}", l), bytes, store(), 0, true, versions));
      moments1_.push_back(make(fmt::format("moment1 {}", l), bytes, Space::kHost, 0, true));
      moments2_.push_back(make(fmt::format("moment2 {}", l), bytes, Space::kHost, 0, true));
      gradients_.push_back(make(fmt::format("gradient {}", l), bytes, store(), 0, false, versions));
    }
    loss_ = make("loss", 16, store(), 0, false, versions);
    for (int d = 0; d < devices_; ++d) {
      temporaries_.push_back(make("temporary", temporary, Space::kDevice, d, true));
      make("workspace", workspace_bytes, Space::kDevice, d, true);
      for (int i = 0; options_.streamed && i < kSlots; ++i)
        slots_.push_back(make(fmt::format("slot {} of device {}", i, d), largest, Space::kDevice, d));
    }
  }

  Task task(TaskKind kind, LaneKind lane, int device, int l, int m = -1, int s = -1) {
    Task t;
    t.kind = kind;
    t.lane = builder_.lane(0, lane, device);
    t.at.rank = 0;
    t.at.device = static_cast<int16_t>(device);
    t.at.layer_begin = static_cast<int16_t>(l);
    t.at.layer_end = static_cast<int16_t>(l + 1);
    t.at.micro_batch = static_cast<int16_t>(m);
    t.at.segment = static_cast<int16_t>(s);
    return t;
  }
  int16_t weights_distance() const { return options_.delayed ? 2 : 0; }
  int next_device() { return devices_ == 1 ? 0 : turn_++ % devices_; }

  // Where the tasks of a layer on this device find its weights.
  Use weights(int l, int device) {
    const Use master{masters_[static_cast<size_t>(l)], Access::kRead, Role::kWeights, 0, weights_distance()};
    if (!options_.streamed) return master;
    const BufferId slot = slots_[static_cast<size_t>(device * kSlots + slot_turn_[device]++ % kSlots)];
    Task t = task(TaskKind::kReload, LaneKind::kHostToDevice, device, l);
    t.uses = {{master.buffer, Access::kRead, Role::kMaster, 0, master.distance},
              {slot, Access::kWrite, Role::kWeights}};
    builder_.append(std::move(t));
    return {slot, Access::kRead, Role::kWeights};
  }
  Use gradient(int l) {
    const bool opens = opened_.insert(l).second;
    return {gradients_[static_cast<size_t>(l)], opens ? Access::kWrite : Access::kAccumulate,
            Role::kGradient};
  }
  void use_saved(Task& t, const Key& key, Access access) {
    const auto& saved = saved_.at(key);
    for (size_t i = 0; i < saved.size(); ++i)
      t.uses.push_back({saved[i], access, Role::kSaved, static_cast<int16_t>(i)});
  }
  void make_saved(const Key& key, Space space, int device) {
    std::vector<BufferId>& saved = saved_[key];
    for (const SavedTensor& tensor : catalogue(key[0], key[2]).saved)
      saved.push_back(make(tensor.name, tensor.bytes, space, device));
  }
  void use_carry(Task& t, int l, int m, int s, bool forward) {
    if (!carried() || !is_block(l)) return;
    std::vector<BufferId>& carry = carries_[{l, m}];
    const int64_t bytes = kHandMicroBatch * kHandSequence * model_.config().kv_width() * 4;
    for (int i = 0; carry.size() < 4; ++i) carry.push_back(make(fmt::format("carry {}", i), bytes, store()));
    const bool last = s + 1 == static_cast<int>(options_.segments.size());
    const auto first = [](bool opens) { return opens ? Access::kWrite : Access::kAccumulate; };
    for (int16_t i = 0; i < (forward ? 2 : 4); ++i)
      t.uses.push_back({carry[static_cast<size_t>(i)],
                        forward ? first(s == 0)
                        : i < 2 ? Access::kRead
                                : first(last),
                        Role::kCarry, i});
  }

  void forward(int l, int m, int s) {
    const Key key{l, m, s};
    const int device = next_device();
    const Use w = weights(l, device);
    Task t = task(TaskKind::kForward, LaneKind::kCompute, device, l, m, s);
    t.uses = {w, {temporaries_[static_cast<size_t>(device)], Access::kWrite, Role::kTemporary}};
    if (l > 0) t.uses.push_back({outputs_.at({l - 1, m, s}), Access::kRead, Role::kInput});
    if (!options_.streamed || !is_block(l)) {
      make_saved(key, store(), device);
      use_saved(t, key, Access::kWrite);
    }
    use_carry(t, l, m, s, true);
    if (l + 1 == layers()) {
      t.uses.push_back(gradient(l));  // the classifier's backward is part of its forward
      t.uses.push_back({loss_, m + s == 0 ? Access::kWrite : Access::kAccumulate, Role::kLoss});
    } else {
      outputs_[key] = make(fmt::format("output {}", l), catalogue(l, s).output_bytes, store());
      t.uses.push_back({outputs_.at(key), Access::kWrite, Role::kOutput});
    }
    builder_.append(std::move(t));
  }

  void backward(int l, int m, int s) {
    const Key key{l, m, s};
    const int device = next_device();
    const Use w = weights(l, device);
    const Use temporary{temporaries_[static_cast<size_t>(device)], Access::kWrite, Role::kTemporary};
    if (options_.streamed && is_block(l)) {
      make_saved(key, Space::kDevice, device);
      Task recover = task(TaskKind::kRecover, LaneKind::kCompute, device, l, m, s);
      recover.uses = {w, temporary, {outputs_.at({l - 1, m, s}), Access::kRead, Role::kInput}};
      use_saved(recover, key, Access::kWrite);
      builder_.append(std::move(recover));
    }
    Task t = task(TaskKind::kBackward, LaneKind::kCompute, device, l, m, s);
    t.uses = {w, temporary};
    if (l > 0) t.uses.push_back({outputs_.at({l - 1, m, s}), Access::kRead, Role::kInput});
    if (l + 1 < layers())
      t.uses.push_back({input_gradients_.at({l + 1, m, s}), Access::kRead, Role::kInput, 1});
    use_saved(t, key, Access::kRead);
    use_carry(t, l, m, s, false);
    t.uses.push_back(gradient(l));
    if (l > 0) {
      input_gradients_[key] =
          make(fmt::format("gradient into {}", l), catalogue(l, s).gradient_bytes, store());
      t.uses.push_back({input_gradients_.at(key), Access::kWrite, Role::kOutput});
    }
    builder_.append(std::move(t));
  }

  void update(int l) {
    const auto i = static_cast<size_t>(l);
    Task t = task(TaskKind::kUpdateShard, LaneKind::kHostCompute, 0, l);
    t.uses = {{gradients_[i], Access::kRead, Role::kGradient},
              {loss_, Access::kRead, Role::kLoss},
              {moments1_[i], Access::kAccumulate, Role::kMoment1},
              {moments2_[i], Access::kAccumulate, Role::kMoment2}};
    if (options_.delayed) t.uses.push_back({masters_[i], Access::kRead, Role::kMaster, 1, 1});
    t.uses.push_back({masters_[i], options_.delayed ? Access::kWrite : Access::kAccumulate, Role::kMaster});
    builder_.append(std::move(t));
  }

  const Model& model_;
  HandOptions options_;
  int devices_, turn_ = 0;
  std::array<int, 2> slot_turn_{};
  StepGraphBuilder builder_;
  std::vector<BufferId> masters_, moments1_, moments2_, gradients_, temporaries_, slots_;
  BufferId loss_ = kNone;
  std::set<int> opened_;
  std::map<Key, BufferId> outputs_, input_gradients_;
  std::map<Key, std::vector<BufferId>> saved_;
  std::map<std::pair<int, int>, std::vector<BufferId>> carries_;
};

// Runs such a program on the data, initial weights and optimizer of a grid without clipping.
class HandBinder : public KernelBinder {
 public:
  HandBinder(const GridPlan& plan, HandOptions options)
      : config_(grid_config(plan)),
        options_(std::move(options)),
        model_(plan.model, kHandSequence),
        data_(grid_data(plan)),
        optimizer_(make_optimizer_settings(config_)) {
    for (auto& kernels : kernels_) kernels = make_host_kernels(1);
    const auto workspace = static_cast<int64_t>(
        kernels_[0]->workspace_bytes(model_.workspace_shape(kHandMicroBatch, kHandSequence, DType::kF32)));
    graph_ = HandWriter(model_, options_, workspace).build();
    memory_.emplace(graph_, std::vector<const StepGraph*>{}, 0);
    for (size_t b = 0; b < graph_.buffers.size(); ++b) {
      const Buffer& buffer = graph_.buffers[b];
      const auto id = static_cast<BufferId>(b);
      if (buffer.name == "workspace")
        kernels_[static_cast<size_t>(buffer.device)]->grant_workspace(
            {memory_->address(graph_, id), static_cast<size_t>(buffer.bytes)});
    }
    for (const Task& t : graph_.tasks) {
      if (t.kind != TaskKind::kUpdateShard) continue;
      const Use& master = *graph_.find(t, Role::kMaster);
      masters_.push_back(master.buffer);
      for (int v = 0; v < graph_.buffers[static_cast<size_t>(master.buffer)].versions; ++v)
        for (const ParameterSpec& p : model_.layer(t.at.layer_begin).parameters())
          initialize_parameter(p, static_cast<uint64_t>(config_.training.seed), 0,
                               {floats(master.buffer, v) + p.offset, static_cast<size_t>(p.count())});
    }
    gradients_.resize(masters_.size());
  }

  const StepGraph& graph() const { return graph_; }
  const Model& model() const { return model_; }
  const OptimizerSettings& optimizer() const { return optimizer_; }

  // Called at the start of every task, on its lane's thread.
  std::function<void(const Task&, int64_t step)> on_start;

  // Loss of each step; gradient of each layer's block, as the last update found it.
  const std::vector<double>& losses() const { return losses_; }
  const std::vector<std::vector<float>>& gradients() const { return gradients_; }
  std::map<std::string, std::vector<float>> weights_after(int64_t step) const {
    std::map<std::string, std::vector<float>> result;
    for (int l = 0; l < model_.layer_count(); ++l)
      for (const ParameterSpec& p : model_.layer(l).parameters()) {
        const float* values = floats(masters_[static_cast<size_t>(l)], step) + p.offset;
        result[p.name] = {values, values + p.count()};
      }
    return result;
  }

  struct Rows {
    std::vector<int32_t> tokens, labels, positions;
  };
  // `length` columns from `offset` of every row of a micro-batch.
  Rows rows(int64_t step, int micro_batch, int64_t offset, int64_t length) const {
    Rows r;
    Sample sample;
    for (int64_t b = 0; b < kHandMicroBatch; ++b) {
      data_->fetch(((step - 1) * options_.micro_batches + micro_batch) * kHandMicroBatch + b, sample);
      const auto append = [&](std::vector<int32_t>& to, const std::vector<int32_t>& from) {
        to.insert(to.end(), from.begin() + offset, from.begin() + offset + length);
      };
      append(r.tokens, sample.tokens);
      append(r.labels, sample.labels);
      append(r.positions, sample.positions);
    }
    return r;
  }

  RequestPtr start(const StepGraph& graph, Instance instance) override {
    const Task& task = graph.tasks[static_cast<size_t>(instance.task)];
    const int64_t step = 1 + instance.step;
    if (on_start) on_start(task, step);
    if (task.kind == TaskKind::kReload)
      reload(task, step);
    else if (task.kind == TaskKind::kUpdateShard)
      update(task, step);
    else
      compute(task, step);
    return nullptr;
  }
  void finish(const StepGraph&, Instance) override {}

 private:
  struct LossCell {
    double sum;
    int64_t valid;
  };
  static constexpr double kBytesPerSecond = 40e6;

  std::byte* at(const Use& use, int64_t step) const {
    return memory_->address(graph_, use.buffer, step, use.distance);
  }
  float* floats(BufferId buffer, int64_t step) const {
    return reinterpret_cast<float*>(memory_->address(graph_, buffer, step));
  }
  int64_t bytes(const Use& use) const { return graph_.buffers[static_cast<size_t>(use.buffer)].bytes; }
  Ref tensor(const Task& task, Role role, int index, int64_t step) const {
    const Use* use = graph_.find(task, role, index);
    return use ? Ref{at(*use, step), DType::kF32} : Ref{};
  }
  // What a buffer holds before its first contribution is zero.
  float* accumulator(const Use* use, int64_t step) const {
    if (!use) return nullptr;
    if (use->access == Access::kWrite) std::memset(at(*use, step), 0, static_cast<size_t>(bytes(*use)));
    return reinterpret_cast<float*>(at(*use, step));
  }

  void reload(const Task& task, int64_t step) const {
    const Use &from = *graph_.find(task, Role::kMaster), &to = *graph_.find(task, Role::kWeights);
    std::memcpy(at(to, step), at(from, step), static_cast<size_t>(bytes(from)));
    std::this_thread::sleep_for(
        std::chrono::duration<double>(static_cast<double>(bytes(from)) / kBytesPerSecond));
  }

  void compute(const Task& task, int64_t step) {
    int64_t offset = 0;
    for (int s = 0; s < task.at.segment; ++s) offset += options_.segments[static_cast<size_t>(s)];
    const int64_t length = options_.segments[static_cast<size_t>(task.at.segment)];
    const Rows batch = rows(step, task.at.micro_batch, offset, length);
    const std::vector<int32_t> starts = {0, static_cast<int32_t>(kHandSequence)};
    std::vector<Ref> saved;
    for (const Use& use : task.uses)
      if (use.role == Role::kSaved) saved.push_back({at(use, step), DType::kF32});
    Carry carry{tensor(task, Role::kCarry, 0, step),
                tensor(task, Role::kCarry, 1, step),
                accumulator(graph_.find(task, Role::kCarry, 2), step),
                accumulator(graph_.find(task, Role::kCarry, 3), step),
                kHandSequence,
                offset};
    const Use& temporary = *graph_.find(task, Role::kTemporary);
    LayerCall call{.kernels = *kernels_[static_cast<size_t>(task.at.device)],
                   .batch = {kHandMicroBatch, length, batch.tokens.data(), batch.labels.data(),
                             batch.positions.data(), starts},
                   .weights = tensor(task, Role::kWeights, 0, step),
                   .shared_weights = {},
                   .gradients = accumulator(graph_.find(task, Role::kGradient), step),
                   .saved = saved,
                   .temporary = {at(temporary, step), static_cast<size_t>(bytes(temporary))},
                   .carry = carry.k ? &carry : nullptr};
    const Layer& layer = model_.layer(task.at.layer_begin);
    const Ref x = tensor(task, Role::kInput, 0, step), y = tensor(task, Role::kOutput, 0, step);
    if (task.kind == TaskKind::kRecover) return layer.recover(call, x);
    if (task.kind == TaskKind::kBackward)
      return layer.backward(call, x, tensor(task, Role::kInput, 1, step), y);
    const ClassifierResult result = layer.forward(call, x, y);
    if (const Use* loss = graph_.find(task, Role::kLoss)) {
      auto* cell = reinterpret_cast<LossCell*>(accumulator(loss, step));
      cell->sum += result.loss_sum;
      cell->valid += result.valid_tokens;
    }
  }

  void update(const Task& task, int64_t step) {
    const auto* loss = reinterpret_cast<const LossCell*>(at(*graph_.find(task, Role::kLoss), step));
    if (task.at.layer_begin == 0) losses_.push_back(loss->sum / static_cast<double>(loss->valid));
    const Use& gradient = *graph_.find(task, Role::kGradient);
    const auto* g = reinterpret_cast<const float*>(at(gradient, step));
    gradients_[static_cast<size_t>(task.at.layer_begin)] = {g, g + bytes(gradient) / 4};
    const Use& master = *graph_.find(task, Role::kMaster);
    if (const Use* last = graph_.find(task, Role::kMaster, 1))
      std::memcpy(at(master, step), at(*last, step), static_cast<size_t>(bytes(master)));
    for (const ParameterSpec& p : model_.layer(task.at.layer_begin).parameters()) {
      AdamW a = adamw_of(optimizer_, p, step, loss->valid);
      a.master = reinterpret_cast<float*>(at(master, step)) + p.offset;
      a.moment1 = tensor(task, Role::kMoment1, 0, step).f32() + p.offset;
      a.moment2 = tensor(task, Role::kMoment2, 0, step).f32() + p.offset;
      a.gradient = g + p.offset;
      kernels_.back()->adamw(a);
    }
  }

 public:
  // One update without clipping; the pointers are left to the caller.
  static AdamW adamw_of(const OptimizerSettings& o, const ParameterSpec& p, int64_t step, int64_t valid) {
    AdamW a{};
    a.count = p.count();
    a.gradient_scale = static_cast<float>(1.0 / static_cast<double>(valid));
    a.learning_rate = static_cast<float>(learning_rate(o.schedule, step - 1));
    a.beta1 = static_cast<float>(o.beta1);
    a.beta2 = static_cast<float>(o.beta2);
    a.epsilon = static_cast<float>(o.epsilon);
    a.weight_decay = p.decays() ? static_cast<float>(o.weight_decay) : 0;
    a.step = step;
    return a;
  }

 private:
  Config config_;
  HandOptions options_;
  Model model_;
  std::shared_ptr<const SampleSource> data_;
  OptimizerSettings optimizer_;
  std::array<std::unique_ptr<KernelSet>, 3> kernels_;  // of each device, of the host
  StepGraph graph_;
  std::optional<RankMemory> memory_;
  std::vector<BufferId> masters_;
  std::vector<double> losses_;
  std::vector<std::vector<float>> gradients_;
};

}  // namespace trainer::testing
