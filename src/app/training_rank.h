// One rank of a training job, put together: program, memory, kernels, inputs, state. Used by `trainer train`,
// by the library's Session, by benchmarks and by tests that run a whole grid of ranks in one process.
#pragma once

#include <memory>
#include <optional>

#include "app/backend.h"
#include "app/training_inputs.h"
#include "checkpoint/model_source.h"
#include "checkpoint/training_checkpoint.h"
#include "runtime/device_inputs.h"
#include "runtime/stage_runtime.h"
#include "runtime/tensor_communicator.h"
#include "runtime/training_binder.h"

namespace trainer {

// The program's problem for a resolved config. `ranks`: to build; empty: all.
Problem make_problem(const Config& config, const Model& model, const KernelSet& kernels,
                     std::vector<int> ranks);

// What `rank` holds of each layer, by a resolved config.
TensorPart tensor_part(const Config& config, int rank);

// What `rank` reads of each global batch.
InputShape input_shape(const Config& config, const Problem& problem, int rank);

OptimizerSettings make_optimizer_settings(const Config& config);

struct MemoryPlan {
  TierBytes tiers{};            // arenas
  int64_t program = 0;          // resident before they are allocated: code, libraries, data
  int64_t tables = 0;           // model constants and inputs, where a device needs copies
  int64_t checkpoint_copy = 0;  // of the state, where a job saves in the background
  int64_t total() const { return tiers[0] + tiers[1] + tiers[2] + program + tables + checkpoint_copy; }
};

class TrainingRank {
 public:
  // `config` is resolved (resolve_parallel) for world.size() ranks. `train` and `valid` may be null;
  // `inputs`, when given, replaces `train`. Builds and checks the program; allocates nothing large.
  // Collective: ranks compare digests of what they will send one another. Throws InputError when the plan
  // cannot run.
  TrainingRank(const Config& config, const ModelConfig& model, RankBackend backend, Communicator& world,
               std::shared_ptr<const SampleSource> train, std::shared_ptr<const SampleSource> valid,
               StepInputs* inputs = nullptr);
  ~TrainingRank();

  MemoryPlan memory_plan() const;
  std::string describe_plan() const;
  // Allocates the arenas; the state is undefined until it is set by what follows.
  void allocate();
  void initialize_random();
  void initialize_from(const ModelSource& source);
  // Parameters only, and all of the state: each rank by itself, so that one may fail while others do not.
  // `refresh_working_weights` must follow.
  void read_weights(const ModelSource& source);
  void read_state(const CheckpointReader& checkpoint);
  // Collective under ZeRO.
  void refresh_working_weights();

  // Steps first ... first + count - 1.
  void run(int64_t first_step, int count, const std::function<void(int64_t)>& on_step);
  StepResult take_result(int64_t step) { return binder_->take_result(step); }
  WaitLedger::StepAccount take_account(int64_t step) { return ledger_.take(step); }
  Timeline take_timeline();

  // Collective; the sum over every target token of the validation split (or `steps` global batches of it), on
  // all ranks.
  ClassifierResult evaluate(int64_t steps);

  // This rank's share of a checkpoint: parameters and moments it is the first to hold; copies of them where
  // the host does not reach the device's memory.
  std::vector<PartTensor> checkpoint_tensors();
  // Whether they are views of the state, not copies.
  bool state_on_host() const { return backend_.device->host_reaches(); }
  // What their values take.
  int64_t checkpoint_bytes() const;
  int64_t updates_done() const { return binder_->updates_done(); }
  // Master values [ParameterSpec::count()] of what is held here of a parameter, in the device's memory; null:
  // nothing.
  const float* parameter(const std::string& name) const;
  // The same on the host.
  std::optional<std::vector<float>> parameter_values(const std::string& name) const;

  int64_t threads() const;  // of the host
  const Problem& problem() const { return problem_; }
  const StepGraph& graph() const { return graph_; }
  const Model& model() const { return model_; }
  KernelSet& kernels() { return *backend_.kernels; }
  Clock& clock() { return clock_; }

 private:
  void compare_digests();
  int64_t micro_batch_tokens() const;
  void place_inputs_and_tables();
  std::vector<float> copy_to_host(const float* values, int64_t count) const;
  std::unique_ptr<TrainingBinder> make_binder(const Problem& problem, StepInputs& inputs, WaitLedger* ledger);

  Config config_;
  Model model_;
  RankBackend backend_;
  Communicator& world_;
  Problem problem_, evaluation_problem_;
  StepGraph graph_, evaluation_graph_;
  RankCommunicators communicators_;
  std::optional<SampledInputs> train_inputs_, valid_inputs_;
  StepInputs *inputs_ = nullptr, *evaluation_inputs_ = nullptr;
  int64_t evaluation_batches_ = 0;
  std::optional<RankMemory> memory_;
  // Where the host does not reach the device's memory.
  std::optional<DeviceInputs> device_inputs_, device_evaluation_inputs_;
  DeviceMemoryPtr tables_;
  RopeTables rope_;
  std::optional<TensorCommunicator> tensor_;
  WaitLedger ledger_;
  Clock clock_;
  std::unique_ptr<TrainingBinder> binder_, evaluation_binder_;
  std::unique_ptr<StageRuntime> runtime_, evaluation_runtime_;
};

}  // namespace trainer
