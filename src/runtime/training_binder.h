// Does the work of a rank's training tasks with a kernel set: layers, folds, exchanges, optimizer.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "comm/collectives.h"
#include "model/layer.h"
#include "optim/lr_schedule.h"
#include "runtime/clock.h"
#include "runtime/kernel_adder.h"
#include "runtime/kernel_binder.h"
#include "runtime/rank_memory.h"
#include "runtime/waiting.h"
#include "schedule/problem.h"
#include "schedule/shards.h"

namespace trainer {

// Per-step inputs, by absolute step (from 1) and the rank's micro-batch. The view stays valid until the step
// after next is asked for.
class StepInputs {
 public:
  virtual ~StepInputs() = default;
  virtual BatchView micro_batch(int64_t step, int micro_batch) = 0;
};

struct OptimizerSettings {
  LrSchedule schedule;
  double weight_decay = 0, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double clip_norm = 0;  // 0: no clipping
  bool skip_non_finite = true;
};

// What all ranks know after a step's exchange.
struct StepResult {
  double loss = 0;           // mean over the valid tokens of the global batch; 0 when there are none
  double gradient_norm = 0;  // of the mean loss, before clipping
  int64_t valid_tokens = 0;
  double learning_rate = 0;  // used by this step's update
  bool skipped = false;
};

// Makes a communicator whose messages lie in memory of the device from one of host memory; `queue` is that of
// the lane that uses it. Collective over `group`.
using DeviceTransport =
    std::function<std::unique_ptr<Communicator>(std::unique_ptr<Communicator> group, DeviceQueue& queue)>;

// One communicator each, for one thread: transfers between stages, and the groups of schedule's
// CommunicatorId. Messages of `world` are host memory.
struct RankCommunicators {
  std::unique_ptr<Communicator> boundary, data_parallel, tied, world;
  std::unique_ptr<Communicator> tensor;  // of the compute lane; null without tensor parallelism
  // Collective over `world`. `transport`: null where the host reaches the device's memory.
  static RankCommunicators make(Communicator& world, const Problem& problem,
                                const DeviceTransport& transport = nullptr, Device& device = host_device());
};

// What this rank updates of a layer's parameter block: elements [range.begin, range.end()). `copy`: of the
// last stage's copy of a tied embedding.
struct OwnedBlock {
  int layer = 0;
  bool copy = false;
  ShardRange range;
  float *master = nullptr, *moment1 = nullptr, *moment2 = nullptr;  // of the range's first element
  Ref working;  // likewise; null data: the master copy itself
  Ref whole;    // the working weights of the whole layer, where the rank keeps them between steps
};

// Closed while a stage-boundary send of this rank is under way. A send that stays under way for long waits
// for its peer, not for the link: then the gate opens, so that no rank waits for another in a circle.
class BoundaryGate : public ChunkGate {
 public:
  bool open() const override {
    return sends_ == 0 || std::chrono::steady_clock::now() - since_ > std::chrono::seconds(2);
  }
  void started() {
    if (sends_++ == 0) since_ = std::chrono::steady_clock::now();
  }
  void ended() {
    --sends_;
    since_ = std::chrono::steady_clock::now();
  }

 private:
  int sends_ = 0;
  std::chrono::steady_clock::time_point since_;
};

class TrainingBinder : public KernelBinder {
 public:
  struct Parts {
    const Problem& problem;
    int rank;
    const Model& model;
    KernelSet& kernels;
    const RankMemory& memory;
    RankCommunicators& communicators;
    StepInputs& inputs;
    OptimizerSettings optimizer;
    DType dtype = DType::kF32;
    SumAlgorithm grad_sync = SumAlgorithm::kDirect;
    WaitLedger* ledger = nullptr;  // may be null
    const Clock* clock = nullptr;
    TensorGroup* tensor = nullptr;  // null without tensor parallelism
    Device* device = &host_device();
    // Of the device's queue for transfers; null where the host reaches the device's memory.
    KernelSet* transfer_kernels = nullptr;
    RopeTables rope = {};  // as in LayerCall
  };
  explicit TrainingBinder(Parts parts);
  ~TrainingBinder() override;

  RequestPtr start(const StepGraph& graph, Instance instance) override;
  void finish(const StepGraph& graph, Instance instance) override;
  bool start_behind(const StepGraph& graph, Instance next) override;

  // Absolute number of the dispatcher's step 0; set before each run.
  void set_first_step(int64_t step) { first_step_ = step; }
  // Optimizer updates made so far (skipped steps make none).
  int64_t updates_done() const { return updates_done_; }
  void set_updates_done(int64_t updates) { updates_done_ = updates; }
  // Removes and returns the result of a finished step.
  StepResult take_result(int64_t step);
  // Loss sum and valid tokens seen by forward-only programs on this rank since the last call.
  ClassifierResult take_evaluation();

  // The blocks that `training` keeps on this rank, ascending by layer, a tied copy last.
  std::vector<OwnedBlock> blocks(const StepGraph& training) const;
  // Working weights from the master copies, after those were set. Collective under ZeRO.
  void refresh_working_weights(const StepGraph& training);

 private:
  struct Control {  // the content of the control buffer
    float gradient_scale, learning_rate;
    int64_t update;  // 1 for the first of training
    int32_t skip;
  };
  struct LossCell {
    double sum;
    int64_t valid;
  };

  DeviceQueue& queue_of(const StepGraph& graph, const Task& task) const;
  // Whether the task's start() waits for nothing, but leaves its work in the compute queue.
  bool only_queues(const StepGraph& graph, const Task& task) const;
  std::byte* at(const StepGraph& graph, const Use& use, int64_t step) const;
  Ref activation(const StepGraph& graph, const Task& task, Role role, int index, int64_t step) const;
  LayerCall call(const StepGraph& graph, const Task& task, int64_t step, std::vector<Ref>& saved) const;
  // The gradients that a task adds to, and whether it is the first to.
  struct Gradient {
    float* data = nullptr;
    bool first = false;
  };
  Gradient gradient(const StepGraph& graph, const Task& task, Role role, int64_t step) const;
  void forward(const StepGraph& graph, const Task& task, int64_t step);
  void backward(const StepGraph& graph, const Task& task, int64_t step);
  void fold(const StepGraph& graph, const Task& task, int64_t step);
  RequestPtr synchronise(const StepGraph& graph, const Task& task, int64_t step);
  RequestPtr refresh(const StepGraph& graph, const Task& task, int64_t step);
  RequestPtr gather(int layer, std::byte* data, const CollectiveOptions& options);
  CollectiveOptions collective_options(const StepGraph& graph, const Task& task) const;
  void square(const StepGraph& graph, const Task& task, int64_t step);
  RequestPtr exchange_norms(const StepGraph& graph, const Task& task, int64_t step);
  void conclude(const StepGraph& graph, const Task& task, int64_t step);
  void update(const StepGraph& graph, const Task& task, int64_t step);
  Control control(const StepGraph& graph, const Task& task, const Use& use, int64_t step) const;
  const std::vector<ShardRange>& ranges(int layer) const { return ranges_[static_cast<size_t>(layer)]; }
  ShardRange own(int layer) const;
  // What this rank updates: its own range under ZeRO, else everything.
  ShardRange updated(int layer) const;
  std::vector<Segment> segments(int layer) const;
  // First byte of element range.begin in a buffer that holds either the layer's whole block or just the
  // range.
  std::byte* part(const StepGraph& graph, const Use& use, int layer, ShardRange range, DType dtype,
                  int64_t step) const;
  double sum_of_squares() const;

  Parts parts_;
  std::optional<KernelAdder> adder_;
  DeviceEventPtr end_under_way_;  // of the compute task before the one that was started behind it
  int64_t first_step_ = 1;
  int64_t updates_done_ = 0;
  std::vector<std::vector<ShardRange>> ranges_;  // [layer][replica]
  std::vector<std::vector<double>> norms_;       // [rank]: its norm blocks, layers ascending
  std::vector<std::vector<double>> ends_;        // [rank]: when its last backward ended, on the common clock
  std::atomic<double> last_backward_end_ = 0;    // of this rank
  std::vector<std::vector<double>> losses_;      // [rank]: sum and valid tokens of each virtual rank
  BoundaryGate gate_;                            // of the thread that drives transfers and collectives
  StepResult under_way_;                         // the loss is known, the norm not yet
  std::mutex results_mutex_;
  std::map<int64_t, StepResult> results_;
  ClassifierResult evaluation_;
};

}  // namespace trainer
