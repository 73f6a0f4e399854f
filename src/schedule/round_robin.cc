#include "schedule/round_robin.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "schedule/rank_writer.h"

namespace trainer {
namespace {

// A stage of one round on its device.
struct DispatchSlot {
  int phase = 0, round = 0, stage = 0, device = 0;
  IndexRange layers;
  bool forward = true, fused = false;
};

class RoundRobinWriter {
 public:
  RoundRobinWriter(StepGraphBuilder& builder, const Problem& problem, const RoundRobin& plan)
      : builder_(builder),
        problem_(problem),
        plan_(plan),
        round_(plan.micro_batches > 0 ? plan.micro_batches : plan.devices),
        copies_(plan.delayed ? 2 : 1) {
    check();
    make_state();
  }

  void write() {
    const int rounds = problem_.micro_batches / round_, count = plan_.stages.count();
    const int period = round_robin_period(plan_.devices, rounds * count, plan_.delayed);
    int turn = 0;
    for (int phase = 0; phase < period; ++phase) {
      std::vector<DispatchSlot> slots;
      for (int r = 0; r < rounds; ++r)
        for (int s = 0; s < count; ++s) slots.push_back(slot_of(phase, r, s, turn++ % plan_.devices));
      write_step(slots);
    }
    builder_.set_period(period);
  }

 private:
  using Key = std::pair<int, int>;  // layer, micro-batch

  int layers() const { return problem_.layer_count(); }
  int head() const { return layers() - 1; }
  const LayerCatalogue& layer(int l) const { return problem_.layers[static_cast<size_t>(l)]; }

  void check() const {
    const auto& [forward, backward] = plan_.stages;
    if (backward.empty()) input_error("round_robin_dispatch: there is no backward stage");
    int next = 0;
    for (const IndexRange& range : forward) {
      if (range.begin != next || range.empty())
        input_error("round_robin_dispatch: a forward stage begins at layer {}, expected layer {}",
                    range.begin, next);
      next = range.end;
    }
    if (backward.front().begin != next)
      input_error("round_robin_dispatch: the fused stage begins at layer {}, the forward stages end at {}",
                  backward.front().begin, next);
    next = layers();
    for (const IndexRange& range : backward) {
      if (range.end != next || range.empty())
        input_error("round_robin_dispatch: a backward stage ends at layer {}, expected layer {}", range.end,
                    next);
      next = range.begin;
    }
    if (next != 0) input_error("round_robin_dispatch: layers below {} have no backward stage", next);
    if (problem_.micro_batches % round_ != 0)
      input_error("round_robin_dispatch: {} micro-batches do not divide into rounds of {}",
                  problem_.micro_batches, round_);
    if (round_ < plan_.devices)
      input_error("round_robin_dispatch: rounds of {} micro-batches leave {} devices idle; use at least {}",
                  round_, plan_.devices, plan_.devices);
    if (problem_.tied())
      input_error("round_robin_dispatch: tied weights get gradients from two stages; untie them");
    if (problem_.world_size() != 1)
      input_error("round_robin_dispatch: one rank drives all devices, but there are {}",
                  problem_.world_size());
  }

  DispatchSlot slot_of(int phase, int round, int stage, int device) const {
    const int forwards = static_cast<int>(plan_.stages.forward.size());
    DispatchSlot slot{phase, round, stage, device, {}, stage < forwards, stage == forwards};
    slot.layers = slot.forward ? plan_.stages.forward[static_cast<size_t>(stage)]
                               : plan_.stages.backward[static_cast<size_t>(stage - forwards)];
    return slot;
  }

  BufferId make(const std::string& name, int64_t bytes, Tier tier, int device,
                bool persistent = false) const {
    Buffer b = rank_buffer(0, name, bytes, tier, persistent, device);
    b.space = device == kNone ? Space::kPinned : Space::kDevice;
    return builder_.add_buffer(std::move(b));
  }

  void make_state() {
    int64_t temporary = 0;
    for (int l = 0; l < layers(); ++l) {
      const int64_t parameters = layer(l).parameters;
      const std::string& name = layer(l).name;
      for (int c = 0; c < copies_; ++c) {
        weights_[l].push_back(make(fmt::format("weights {} copy {}", name, c),
                                   parameters * problem_.element_bytes, Tier::kLong, kNone, true));
        gradients_[l].push_back(
            make(fmt::format("gradient {} copy {}", name, c), parameters * 4, Tier::kMedium, kNone));
      }
      for (const char* what : {"master", "moment1", "moment2"})
        state_[l].push_back(make(fmt::format("{} {}", what, name), parameters * 4, Tier::kLong, kNone, true));
      temporary = std::max(temporary, layer(l).temporary_bytes);
    }
    for (int d = 0; d < plan_.devices; ++d) {
      temporaries_.push_back(make("temporary", temporary, Tier::kShort, d, true));
      if (problem_.workspace_bytes > 0) make("workspace", problem_.workspace_bytes, Tier::kShort, d, true);
    }
    for (int c = 0; c < copies_; ++c) losses_.push_back(make("loss", 16, Tier::kMedium, kNone));
    for (const auto* stages : {&plan_.stages.forward, &plan_.stages.backward})
      for (const IndexRange& range : *stages) kept_.insert(range.begin - 1);
  }

  Task task(TaskKind kind, LaneKind lane, const DispatchSlot& slot, int l, int m) const {
    Task t = rank_task(builder_, kind, lane, 0, slot.stage, m, l, slot.device);
    t.at.phase = static_cast<int16_t>(slot.phase);
    return t;
  }

  void copy(TaskKind kind, const DispatchSlot& slot, int l, int m, const Use& from, const Use& to) const {
    Task t =
        task(kind, kind == TaskKind::kReload ? LaneKind::kHostToDevice : LaneKind::kDeviceToHost, slot, l, m);
    t.bytes = std::min(builder_.draft().buffers[static_cast<size_t>(from.buffer)].bytes,
                       builder_.draft().buffers[static_cast<size_t>(to.buffer)].bytes);
    t.uses = {from, to};
    builder_.append(std::move(t));
  }

  void write_step(const std::vector<DispatchSlot>& slots) {
    copy_ = slots.front().phase % copies_;
    activations_.clear();
    input_gradients_.clear();
    const auto count = slots.size(), devices = static_cast<size_t>(plan_.devices);
    std::vector<std::map<int, BufferId>> weights(count);
    for (size_t i = 0; i < std::min(devices, count); ++i)
      for (int l = slots[i].layers.begin; l < slots[i].layers.end; ++l) load_weights(slots[i], l, weights[i]);
    for (size_t i = 0; i < count; ++i) {
      std::vector<std::vector<int>> windows(static_cast<size_t>(round_));
      if (i + devices < count) windows = spread(slots[i + devices].layers);
      write_slot(slots[i], weights[i], [&](int window) {
        for (int l : windows[static_cast<size_t>(window)])
          load_weights(slots[i + devices], l, weights[i + devices]);
      });
    }
    for (int l = 0; l < layers(); ++l) update(slots.front(), l);
  }

  // Layers to the micro-batches under which they are copied.
  std::vector<std::vector<int>> spread(const IndexRange& range) const {
    std::vector<int> order(static_cast<size_t>(range.size()));
    std::iota(order.begin(), order.end(), range.begin);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return layer(a).parameters > layer(b).parameters; });
    std::vector<std::vector<int>> windows(static_cast<size_t>(round_));
    std::vector<int64_t> load(windows.size());
    for (int l : order) {
      const auto least = static_cast<size_t>(std::min_element(load.begin(), load.end()) - load.begin());
      windows[least].push_back(l);
      load[least] += layer(l).parameters;
    }
    return windows;
  }

  void load_weights(const DispatchSlot& slot, int l, std::map<int, BufferId>& weights) const {
    weights[l] = make(fmt::format("weights {} on device {}", layer(l).name, slot.device),
                      layer(l).parameters * problem_.element_bytes, Tier::kShort, slot.device);
    copy(TaskKind::kReload, slot, l, -1,
         {weights_.at(l)[static_cast<size_t>(copy_)], Access::kRead, Role::kMaster},
         {weights[l], Access::kWrite, Role::kWeights});
  }

  // Of one micro-batch, copied to the slot's device; kNone where the stage begins or ends the model.
  struct Inputs {
    BufferId activation = kNone, gradient = kNone;
  };

  Inputs load_inputs(const DispatchSlot& slot, int m) const {
    Inputs inputs;
    const int below = slot.layers.begin - 1, above = slot.layers.end;
    if (below >= 0) {
      inputs.activation = make(fmt::format("input of stage {} micro-batch {}", slot.stage, m),
                               layer(below).output_bytes, Tier::kShort, slot.device);
      copy(TaskKind::kReload, slot, below, m, {activations_.at({below, m}), Access::kRead, Role::kInput},
           {inputs.activation, Access::kWrite, Role::kOutput});
    }
    if (!slot.forward && above < layers()) {
      inputs.gradient = make(fmt::format("gradient into stage {} micro-batch {}", slot.stage, m),
                             layer(above).gradient_bytes, Tier::kShort, slot.device);
      copy(TaskKind::kReload, slot, above, m,
           {input_gradients_.at({above, m}), Access::kRead, Role::kInput, 1},
           {inputs.gradient, Access::kWrite, Role::kOutput, 1});
    }
    return inputs;
  }

  template <class LoadNext>
  void write_slot(const DispatchSlot& slot, const std::map<int, BufferId>& weights,
                  const LoadNext& load_next) {
    std::map<int, BufferId> gradients;
    if (!slot.forward)
      for (int l = slot.layers.begin; l < slot.layers.end; ++l) gradients[l] = open_gradient(slot, l);
    Inputs inputs = load_inputs(slot, slot.round * round_);
    for (int i = 0; i < round_; ++i) {
      const int m = slot.round * round_ + i;
      const Inputs mine = inputs;
      if (i + 1 < round_) inputs = load_inputs(slot, m + 1);
      load_next(i);
      compute(slot, m, i == 0, mine, weights, gradients);
    }
    for (const auto& [l, gradient] : gradients)
      copy(TaskKind::kOffload, slot, l, -1, {gradient, Access::kRead, Role::kGradient},
           {gradients_.at(l)[static_cast<size_t>(copy_)], Access::kWrite, Role::kGradient});
  }

  BufferId open_gradient(const DispatchSlot& slot, int l) const {
    const BufferId gradient = make(fmt::format("gradient {} on device {}", layer(l).name, slot.device),
                                   layer(l).parameters * 4, Tier::kShort, slot.device);
    if (slot.round > 0)
      copy(TaskKind::kReload, slot, l, -1,
           {gradients_.at(l)[static_cast<size_t>(copy_)], Access::kRead, Role::kGradient},
           {gradient, Access::kWrite, Role::kGradient});
    return gradient;
  }

  void compute(const DispatchSlot& slot, int m, bool first, const Inputs& inputs,
               const std::map<int, BufferId>& weights, const std::map<int, BufferId>& gradients) {
    const auto begin = [&](TaskKind kind, int l) {
      Task t = task(kind, LaneKind::kCompute, slot, l, m);
      t.uses = {{weights.at(l), Access::kRead, Role::kWeights},
                {temporaries_[static_cast<size_t>(slot.device)], Access::kWrite, Role::kTemporary}};
      return t;
    };
    const bool opens = first && slot.round == 0;
    std::map<int, BufferId> outputs{{slot.layers.begin - 1, inputs.activation}};
    std::map<int, std::vector<BufferId>> saved;
    for (int l = slot.layers.begin; l < slot.layers.end; ++l) {
      Task t = begin(slot.forward || slot.fused ? TaskKind::kForward : TaskKind::kRecover, l);
      if (l > 0) t.uses.push_back({outputs.at(l - 1), Access::kRead, Role::kInput});
      for (size_t i = 0; !slot.forward && i < layer(l).saved.size(); ++i) {
        const SavedTensor& tensor = layer(l).saved[i];
        saved[l].push_back(make(fmt::format("{} of {} micro-batch {}", tensor.name, layer(l).name, m),
                                tensor.bytes, Tier::kShort, slot.device));
        t.uses.push_back({saved[l].back(), Access::kWrite, Role::kSaved, static_cast<int16_t>(i)});
      }
      if (l == head()) {
        // The classifier's backward is fused with its forward, so gradients are added to here.
        t.uses.push_back({gradients.at(l), opens ? Access::kWrite : Access::kAccumulate, Role::kGradient});
        t.uses.push_back({losses_[static_cast<size_t>(copy_)], m == 0 ? Access::kWrite : Access::kAccumulate,
                          Role::kLoss});
      } else if (slot.forward || l + 1 < slot.layers.end) {
        outputs[l] = make(fmt::format("output of {} micro-batch {}", layer(l).name, m), layer(l).output_bytes,
                          Tier::kShort, slot.device);
        t.uses.push_back({outputs.at(l), Access::kWrite, Role::kOutput});
      }
      builder_.append(std::move(t));
      // A backward stage that begins inside the fused stage does not exist, so only forward stages keep
      // inputs.
      if (slot.forward && kept_.contains(l)) keep(slot, l, m, outputs.at(l), activations_, 0);
    }
    if (slot.forward) return;
    BufferId incoming = inputs.gradient;
    for (int l = slot.layers.end; l-- > slot.layers.begin;) {
      Task t = begin(TaskKind::kBackward, l);
      if (l > 0) t.uses.push_back({outputs.at(l - 1), Access::kRead, Role::kInput});
      if (l < head()) t.uses.push_back({incoming, Access::kRead, Role::kInput, 1});
      for (size_t i = 0; i < saved[l].size(); ++i)
        t.uses.push_back({saved[l][i], Access::kRead, Role::kSaved, static_cast<int16_t>(i)});
      t.uses.push_back(
          {gradients.at(l), opens && l != head() ? Access::kWrite : Access::kAccumulate, Role::kGradient});
      if (l > 0) {
        incoming = make(fmt::format("gradient into {} micro-batch {}", layer(l).name, m),
                        layer(l).gradient_bytes, Tier::kShort, slot.device);
        t.uses.push_back({incoming, Access::kWrite, Role::kOutput});
      }
      builder_.append(std::move(t));
    }
    if (slot.layers.begin > 0) keep(slot, slot.layers.begin, m, incoming, input_gradients_, 1);
  }

  // To host memory, where the next stages find it.
  void keep(const DispatchSlot& slot, int l, int m, BufferId from, std::map<Key, BufferId>& kept,
            int16_t index) const {
    const BufferId to = make(
        fmt::format("{} {} micro-batch {} kept", index ? "gradient into" : "output of", layer(l).name, m),
        builder_.draft().buffers[static_cast<size_t>(from)].bytes, index ? Tier::kShort : Tier::kMedium,
        kNone);
    kept[{l, m}] = to;
    copy(TaskKind::kOffload, slot, l, m, {from, Access::kRead, Role::kInput, index},
         {to, Access::kWrite, Role::kOutput, index});
  }

  void update(const DispatchSlot& slot, int l) const {
    Task t = task(TaskKind::kUpdateShard, LaneKind::kHostCompute, slot, l, -1);
    t.lane = builder_.lane(0, LaneKind::kHostCompute);
    t.at.device = t.at.stage = -1;
    const auto c = static_cast<size_t>(copy_);
    const auto& state = state_.at(l);
    t.uses = {{gradients_.at(l)[c], Access::kRead, Role::kGradient},
              {losses_[c], Access::kRead, Role::kLoss},
              {state[0], Access::kAccumulate, Role::kMaster},
              {state[1], Access::kAccumulate, Role::kMoment1},
              {state[2], Access::kAccumulate, Role::kMoment2},
              {weights_.at(l)[c], Access::kWrite, Role::kWeights}};
    builder_.append(std::move(t));
  }

  StepGraphBuilder& builder_;
  const Problem& problem_;
  const RoundRobin& plan_;
  const int round_, copies_;
  int copy_ = 0;  // of weights and gradients, of the step being written
  std::map<int, std::vector<BufferId>> weights_, gradients_;  // [layer][copy], in host memory
  std::map<int, std::vector<BufferId>> state_;                // [layer]: master, moments
  std::vector<BufferId> temporaries_, losses_;
  std::set<int> kept_;                                     // layers whose output some stage begins with
  std::map<Key, BufferId> activations_, input_gradients_;  // between stages, in host memory
};

}  // namespace

int round_robin_period(int devices, int slots_per_step, bool delayed) {
  const int period = devices / std::gcd(devices, slots_per_step);
  return delayed && period % 2 != 0 ? 2 * period : period;  // the two copies of weights swap with every step
}

void round_robin_dispatch(StepGraphBuilder& builder, const Problem& problem, const RoundRobin& plan) {
  RoundRobinWriter(builder, problem, plan).write();
  builder.record_pass(plan.delayed ? "round_robin_dispatch delayed" : "round_robin_dispatch");
}

}  // namespace trainer
