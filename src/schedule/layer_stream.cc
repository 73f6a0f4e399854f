#include "schedule/layer_stream.h"

#include <array>
#include <map>

#include "base/error.h"
#include "schedule/rank_writer.h"
#include "schedule/shards.h"

namespace trainer {
namespace {

class LayerStreamWriter : RankWriter {
 public:
  LayerStreamWriter(StepGraphBuilder& builder, const Problem& problem, const LayerStream& plan)
      : RankWriter(builder, 0, 0),
        problem_(problem),
        schedule_(plan.schedule),
        recompute_ends_(plan.recompute_ends),
        blocks_(problem.layer_count() - 2) {
    make_state();
  }

  void write() {
    for (int m = 0; m < problem_.micro_batches; ++m) {
      at_ = {};
      forward(m);
      backward(m);
    }
    collect_resident_gradients();
    const BufferId control = norm();
    for (int l = 0; l < problem_.layer_count(); ++l) update(l, control);
  }

 private:
  // Two buffers of the device that layers take in turn.
  struct Slots {
    std::array<BufferId, 2> buffers{};
    std::array<int, 2> layer{-1, -1};
    int last = 1;
    int next(int l) {
      last = 1 - last;
      layer[static_cast<size_t>(last)] = l;
      return last;
    }
  };

  int head() const { return problem_.layer_count() - 1; }
  bool resident(int l) const { return l == 0 || l == head(); }
  const LayerCatalogue& layer(int l) const { return problem_.layers[static_cast<size_t>(l)]; }
  int64_t weight_bytes(int l) const { return layer(l).parameters * problem_.element_bytes; }
  int64_t gradient_bytes(int l) const { return layer(l).parameters * 4; }
  int64_t bytes_of(BufferId id) const { return builder_.draft().buffers[static_cast<size_t>(id)].bytes; }
  const BoundaryPlacement& placement(int boundary) const {
    return schedule_.boundaries[static_cast<size_t>(boundary)];
  }

  BufferId make_in(Space space, const std::string& name, int64_t bytes, Tier tier,
                   bool persistent = false) const {
    const BufferId id = make(name, bytes, tier, persistent);
    builder_.buffer(id).space = space;
    if (space != Space::kDevice) builder_.buffer(id).device = -1;
    return id;
  }

  void make_state() {
    const bool separate = problem_.element_bytes != 4;
    int64_t temporary = 0, largest = 0;
    for (int l = 0; l < problem_.layer_count(); ++l) {
      const std::string& name = layer(l).name;
      const int64_t bytes = layer(l).parameters * 4;
      master_.push_back(
          make_in(separate ? Space::kHost : Space::kPinned, "master " + name, bytes, Tier::kLong, true));
      host_weights_.push_back(
          separate ? make_in(Space::kPinned, "weights " + name, weight_bytes(l), Tier::kLong, true)
                   : master_.back());
      moment1_.push_back(make_in(Space::kHost, "moment1 " + name, bytes, Tier::kLong, true));
      moment2_.push_back(make_in(Space::kHost, "moment2 " + name, bytes, Tier::kLong, true));
      host_gradient_.push_back(make_in(Space::kPinned, "gradient " + name, bytes, Tier::kMedium));
      temporary = std::max(temporary, layer(l).temporary_bytes);
      if (resident(l)) {
        resident_weights_[l] = make(name + " on the device", weight_bytes(l), Tier::kLong, true);
        resident_gradient_[l] = make("gradient " + name + " on the device", bytes, Tier::kMedium);
      } else {
        largest = std::max(largest, layer(l).parameters);
      }
    }
    if (problem_.tied())
      shared_gradient_ = make("gradient " + layer(0).name + " from head", gradient_bytes(0), Tier::kMedium);
    for (size_t i = 0; i < 2; ++i) {
      weights_.buffers[i] =
          make(fmt::format("weights slot {}", i), largest * problem_.element_bytes, Tier::kMedium);
      gradients_.buffers[i] = make(fmt::format("gradient slot {}", i), largest * 4, Tier::kMedium);
      if (problem_.micro_batches > 1)
        arrived_.buffers[i] =
            make_in(Space::kPinned, fmt::format("arrived gradient {}", i), largest * 4, Tier::kShort);
    }
    temporary_ = make("temporary", temporary, Tier::kShort, true);
    if (problem_.workspace_bytes > 0) make("workspace", problem_.workspace_bytes, Tier::kShort, true);
    loss_ = make_in(Space::kPinned, "loss", 16, Tier::kMedium);
  }

  void copy(TaskKind kind, LaneKind lane, int m, int l, const Use& from, const Use& to, int64_t bytes) const {
    Task t = task(kind, lane, m, l);
    t.bytes = bytes;
    t.uses = {from, to};
    builder_.append(std::move(t));
  }

  // Brings the weights of a block into a slot, ahead of whatever uses them.
  BufferId weights(int l, int m) {
    if (resident(l)) return resident_weights_.at(l);
    for (size_t i = 0; i < 2; ++i)
      if (weights_.layer[i] == l) {
        weights_.last = static_cast<int>(i);
        return weights_.buffers[i];
      }
    const BufferId slot = weights_.buffers[static_cast<size_t>(weights_.next(l))];
    copy(TaskKind::kReload, LaneKind::kHostToDevice, m, l,
         {host_weights_[static_cast<size_t>(l)], Access::kRead, Role::kInput},
         {slot, Access::kWrite, Role::kWeights}, weight_bytes(l));
    return slot;
  }

  Task compute(TaskKind kind, int m, int l) {
    const BufferId slot = weights(l, m);
    Task t = task(kind, LaneKind::kCompute, m, l);
    t.uses.push_back({slot, Access::kRead, Role::kWeights});
    if (l == head() && problem_.tied())
      t.uses.push_back({resident_weights_.at(0), Access::kRead, Role::kSharedWeights});
    t.uses.push_back({temporary_, Access::kWrite, Role::kTemporary});
    if (l > 0) t.uses.push_back({at_.device.at(l - 1), Access::kRead, Role::kInput});
    return t;
  }

  BufferId make_boundary(const char* what, int boundary, int m) const {
    return make(fmt::format("{} {} micro-batch {}", what, boundary, m), layer(boundary).output_bytes,
                Tier::kMedium);
  }

  void make_saved(Task& t, Tier tier) {
    std::vector<BufferId>& saved = at_.saved[t.at.layer_begin];
    for (const SavedTensor& tensor : layer(t.at.layer_begin).saved) {
      saved.push_back(make(
          fmt::format("{} of {} micro-batch {}", tensor.name, layer(t.at.layer_begin).name, t.at.micro_batch),
          tensor.bytes, tier));
      t.uses.push_back({saved.back(), Access::kWrite, Role::kSaved, static_cast<int16_t>(saved.size() - 1)});
    }
  }

  // The pieces of one lane that travel in a window. The first piece of a boundary makes its buffer.
  void pieces(std::vector<WindowBytes> BoundaryPlacement::*list, int window, TaskKind kind, LaneKind lane,
              int m, std::map<int, BufferId>& from, std::map<int, BufferId>& to, Space space, Tier tier,
              const char* name) {
    for (int i = 1; i < blocks_; ++i) {
      const auto& windows = placement(i).*list;
      for (size_t k = 0; k < windows.size(); ++k) {
        if (windows[k].window != window) continue;
        if (k == 0)
          to[i] = make_in(space, fmt::format("boundary {} {} micro-batch {}", i, name, m),
                          layer(i).output_bytes, tier);
        const auto index = static_cast<int16_t>(k);
        copy(kind, lane, m, i, {from.at(i), Access::kRead, Role::kInput, index},
             {to.at(i), k == 0 ? Access::kWrite : Access::kAccumulate, Role::kOutput, index},
             windows[k].bytes);
      }
    }
  }

  void leave(int window, int m) {
    pieces(&BoundaryPlacement::device_to_host, window, TaskKind::kOffload, LaneKind::kDeviceToHost, m,
           at_.device, at_.host, Space::kPinned, Tier::kMedium, "in host memory");
    pieces(&BoundaryPlacement::storage_write, window, TaskKind::kOffload, LaneKind::kStorageWrite, m,
           at_.host, at_.storage, Space::kStorage, Tier::kMedium, "in storage");
  }

  // A boundary in storage comes back through a second buffer in host memory, so that the first is free
  // meanwhile.
  void come_back(int window, int m) {
    pieces(&BoundaryPlacement::storage_read, window, TaskKind::kReload, LaneKind::kStorageRead, m,
           at_.storage, at_.fetched, Space::kPinned, Tier::kShort, "from storage");
    std::map<int, BufferId> sources = at_.host;
    for (const auto& [boundary, buffer] : at_.fetched) sources[boundary] = buffer;
    pieces(&BoundaryPlacement::host_to_device, window, TaskKind::kReload, LaneKind::kHostToDevice, m, sources,
           at_.back, Space::kDevice, Tier::kMedium, "back");
  }

  void forward(int m) {
    for (int l = 0; l <= blocks_; ++l) {
      Task t = compute(TaskKind::kForward, m, l);
      if (l == 0) make_saved(t, Tier::kMedium);
      at_.device[l] = make_boundary("boundary", l, m);
      t.uses.push_back({at_.device.at(l), Access::kWrite, Role::kOutput});
      builder_.append(std::move(t));
      if (l > 0) leave(l - 1, m);
    }
    come_back(blocks_, m);
    Task t = compute(TaskKind::kForward, m, head());
    make_saved(t, Tier::kMedium);
    // The classifier's backward is fused with its forward, so gradients are added to here.
    const Access access = m == 0 ? Access::kWrite : Access::kAccumulate;
    t.uses.push_back({loss_, access, Role::kLoss});
    t.uses.push_back({resident_gradient_.at(head()), access, Role::kGradient});
    if (problem_.tied()) t.uses.push_back({shared_gradient_, access, Role::kSharedGradient});
    builder_.append(std::move(t));
  }

  void backward(int m) {
    backward_of(head(), m);
    const auto edges = schedule_.edges();
    for (size_t k = edges.size(); k-- > 0;) {
      const auto& [begin, end] = edges[k];
      if (const auto back = at_.back.find(begin); back != at_.back.end()) at_.device[begin] = back->second;
      recompute(begin, recompute_ends_ && end > begin + 1 ? end : end - 1, end, m);
      for (int w = end - 1; w >= begin; --w) {
        weights(w + 1, m);  // first on the lane: what comes back meanwhile is for later layers of the pass
        come_back(w, m);
        Task recover = compute(TaskKind::kRecover, m, w + 1);
        make_saved(recover, Tier::kShort);
        builder_.append(std::move(recover));
        backward_of(w + 1, m);
      }
    }
    backward_of(0, m);
  }

  // Layers [begin, last) of the schedule, from the boundary `begin`.
  void recompute(int begin, int last, int end, int m) {
    for (int w = begin; w < last; ++w) {
      Task t = compute(TaskKind::kRecover, m, w + 1);
      const BufferId output = make_boundary("recomputed boundary", w + 1, m);
      if (w + 1 < end) at_.device[w + 1] = output;
      t.uses.push_back({output, Access::kWrite, Role::kOutput});
      builder_.append(std::move(t));
    }
  }

  void backward_of(int l, int m) {
    Task t = compute(TaskKind::kBackward, m, l);
    if (l < head()) t.uses.push_back({at_.input_gradient, Access::kRead, Role::kInput, 1});
    const std::vector<BufferId>& saved = at_.saved[l];
    for (size_t i = 0; i < saved.size(); ++i)
      t.uses.push_back({saved[i], Access::kRead, Role::kSaved, static_cast<int16_t>(i)});
    const bool accumulates = l == head() || (resident(l) && m > 0);
    const BufferId gradient =
        resident(l) ? resident_gradient_.at(l) : gradients_.buffers[static_cast<size_t>(gradients_.next(l))];
    t.uses.push_back({gradient, accumulates ? Access::kAccumulate : Access::kWrite, Role::kGradient});
    if (l > 0) {
      at_.input_gradient = make(fmt::format("gradient into {} micro-batch {}", layer(l).name, m),
                                layer(l).gradient_bytes, Tier::kShort);
      t.uses.push_back({at_.input_gradient, Access::kWrite, Role::kOutput});
    }
    builder_.append(std::move(t));
    if (!resident(l)) gradient_down(l, m, gradient);
  }

  void gradient_down(int l, int m, BufferId gradient) {
    const BufferId kept = host_gradient_[static_cast<size_t>(l)];
    const BufferId to = m == 0 ? kept : arrived_.buffers[static_cast<size_t>(arrived_.next(l))];
    copy(TaskKind::kOffload, LaneKind::kDeviceToHost, m, l, {gradient, Access::kRead, Role::kGradient},
         {to, Access::kWrite, Role::kOutput}, gradient_bytes(l));
    if (m == 0) return;
    Task fold = task(TaskKind::kGradFold, LaneKind::kHostCompute, m, l);
    fold.uses = {{kept, Access::kAccumulate, Role::kGradient}, {to, Access::kRead, Role::kInput}};
    builder_.append(std::move(fold));
  }

  // The tied table's gradient is the embedding's plus the head's, in that order.
  void collect_resident_gradients() {
    if (problem_.tied()) {
      Task fold = task(TaskKind::kGradFold, LaneKind::kCompute, -1, 0);
      fold.uses = {{resident_gradient_.at(0), Access::kAccumulate, Role::kGradient},
                   {shared_gradient_, Access::kRead, Role::kInput}};
      builder_.append(std::move(fold));
    }
    for (const auto& [l, gradient] : resident_gradient_)
      copy(TaskKind::kOffload, LaneKind::kDeviceToHost, -1, l, {gradient, Access::kRead, Role::kGradient},
           {host_gradient_[static_cast<size_t>(l)], Access::kWrite, Role::kOutput}, gradient_bytes(l));
  }

  BufferId norm() {
    int64_t blocks = 0;
    for (int l = 0; l < problem_.layer_count(); ++l)
      blocks += norm_block_count(layer(l), {0, layer(l).parameters});
    const BufferId norms = make_in(Space::kHost, "squares of gradients", blocks * 8, Tier::kShort);
    Task squares = task(TaskKind::kGradNorm, LaneKind::kHostCompute, -1, -1);
    squares.uses.push_back({norms, Access::kWrite, Role::kNorms});
    for (int l = 0; l < problem_.layer_count(); ++l)
      squares.uses.push_back(
          {host_gradient_[static_cast<size_t>(l)], Access::kRead, Role::kGradient, static_cast<int16_t>(l)});
    builder_.append(std::move(squares));
    const BufferId control = make_in(Space::kHost, "step control", 64, Tier::kShort);
    Task decide = task(TaskKind::kNormSync, LaneKind::kHostCompute, -1, -1);
    decide.communicator = kWorld;
    decide.uses = {{norms, Access::kRead, Role::kNorms},
                   {loss_, Access::kRead, Role::kLoss},
                   {control, Access::kWrite, Role::kControl}};
    builder_.append(std::move(decide));
    return control;
  }

  void update(int l, BufferId control) {
    const auto i = static_cast<size_t>(l);
    Task t = task(TaskKind::kUpdateShard, LaneKind::kHostCompute, -1, l);
    t.predicate = control;
    t.uses = {{host_gradient_[i], Access::kRead, Role::kGradient},
              {control, Access::kRead, Role::kControl},
              {master_[i], Access::kAccumulate, Role::kMaster},
              {moment1_[i], Access::kAccumulate, Role::kMoment1},
              {moment2_[i], Access::kAccumulate, Role::kMoment2}};
    if (host_weights_[i] != master_[i]) t.uses.push_back({host_weights_[i], Access::kWrite, Role::kWeights});
    builder_.append(std::move(t));
    if (resident(l))
      copy(TaskKind::kReload, LaneKind::kHostToDevice, -1, l, {host_weights_[i], Access::kRead, Role::kInput},
           {resident_weights_.at(l), Access::kWrite, Role::kWeights}, weight_bytes(l));
  }

  // Of the micro-batch at work. Boundaries by number.
  struct MicroBatch {
    std::map<int, BufferId> device, host, storage, fetched, back;
    std::map<int, std::vector<BufferId>> saved;  // by layer
    BufferId input_gradient = kNone;
  };

  const Problem& problem_;
  const CheckpointSchedule& schedule_;
  const bool recompute_ends_;
  const int blocks_;
  std::vector<BufferId> master_, host_weights_, moment1_, moment2_, host_gradient_;  // [layers]
  std::map<int, BufferId> resident_weights_, resident_gradient_;                     // embedding, head
  BufferId shared_gradient_ = kNone, temporary_ = kNone, loss_ = kNone;
  Slots weights_, gradients_, arrived_;
  MicroBatch at_;
};

}  // namespace

void layer_stream(StepGraphBuilder& builder, const Problem& problem, const LayerStream& plan) {
  if (problem.world_size() != 1 || problem.virtual_ranks != 1)
    input_error("layer_stream: layers stream through one device; set parallel sizes to 1, found {} ranks",
                problem.world_size());
  if (problem.forward_only)
    input_error("layer_stream: a schedule is for training; evaluate with another front end");
  if (problem.layer_count() < 3) input_error("layer_stream: the model has no blocks");
  std::vector<int64_t> bytes;
  for (int l = 0; l + 1 < problem.layer_count(); ++l)
    bytes.push_back(problem.layers[static_cast<size_t>(l)].output_bytes);
  if (const auto errors = structural_errors(plan.schedule, bytes); !errors.empty())
    input_error("layer_stream: the schedule is not one of this model: {}", errors.front());
  LayerStreamWriter(builder, problem, plan).write();
  builder.record_pass("layer_stream");
}

}  // namespace trainer
