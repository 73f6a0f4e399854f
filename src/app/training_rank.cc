#include "app/training_rank.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "app/agreement.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/units.h"
#include "comm/collectives.h"
#include "device/arena.h"
#include "schedule/activation_policy.h"
#include "schedule/check.h"
#include "schedule/passes.h"

namespace trainer {
namespace {

// Beyond this many ranks the whole graph is not built on one rank, and each checks its own; digests are
// compared all the same.
constexpr int kRanksCheckedWhole = 64;

void throw_diagnostics(const std::vector<Diagnostic>& problems) {
  if (problems.empty()) return;
  std::string text = "this plan cannot run:";
  for (const Diagnostic& d : problems) text += "\n  " + d.message;
  input_error("{}", text);
}

}  // namespace

Problem make_problem(const Config& config, const Model& model, const KernelSet& kernels,
                     std::vector<int> ranks) {
  Problem p;
  const auto& t = config.training;
  p.stages = static_cast<int>(config.parallel.pipeline_parallel_size);
  p.replicas = static_cast<int>(config.parallel.data_parallel_size);
  p.tensor_ranks = model.part().size;
  p.tensor_staging_bytes = TensorCommunicator::staging_bytes(p.tensor_ranks);
  p.micro_batches = static_cast<int>(t.global_batch_size / (t.micro_batch_size * p.replicas));
  p.reproducible_group = config.parallel.reproducible_group > 0;
  if (p.reproducible_group)
    p.virtual_ranks = static_cast<int>(config.parallel.reproducible_group) / p.replicas;
  const DType dtype = config.precision.compute;
  for (int l = 0; l < model.layer_count(); ++l)
    p.layers.push_back(model.layer(l).catalogue(t.micro_batch_size, config.data.sequence_length, dtype));
  p.first_layer = first_layers(config.parallel.stage_layers);
  p.element_bytes = static_cast<int64_t>(size_of(dtype));
  p.workspace_bytes = static_cast<int64_t>(
      kernels.workspace_bytes(model.workspace_shape(t.micro_batch_size, config.data.sequence_length, dtype)));
  p.passes = config.schedule.passes;
  p.zero_stage = static_cast<int>(config.parallel.zero_stage);
  p.shard_gradients = config.parallel.shard_gradients;
  p.recovery_buffers = static_cast<int>(config.schedule.recovery_buffers);
  p.updates_wait_for_norm = config.optimizer.clip_grad > 0 || config.optimizer.skip_non_finite;
  p.kept = choose_kept(p, config.schedule.activation, config.schedule.last_stage_keeps,
                       config.device.memory_budget.bytes);
  p.ranks = std::move(ranks);
  return p;
}

TensorPart tensor_part(const Config& config, int rank) {
  const int size = static_cast<int>(config.parallel.tensor_parallel_size);
  return {size, rank % size, size > 1 && config.parallel.sequence_parallel.value_or(true)};
}

InputShape input_shape(const Config& config, const Problem& problem, int rank) {
  InputShape shape;
  shape.micro_batch_size = config.training.micro_batch_size;
  shape.global_batch_size = config.training.global_batch_size;
  shape.ranks = problem.replicas * problem.virtual_ranks;
  shape.mine.clear();
  for (int i = 0; i < problem.virtual_ranks; ++i)
    shape.mine.push_back(problem.virtual_rank_of(problem.replica_of(rank), i));
  return shape;
}

OptimizerSettings make_optimizer_settings(const Config& config) {
  const OptimizerSection& o = config.optimizer;
  OptimizerSettings s;
  s.schedule = make_lr_schedule(config);
  s.weight_decay = o.weight_decay;
  s.beta1 = o.adam_beta1;
  s.beta2 = o.adam_beta2;
  s.epsilon = o.adam_eps;
  s.clip_norm = o.clip_grad;
  s.skip_non_finite = o.skip_non_finite;
  return s;
}

TrainingRank::TrainingRank(const Config& config, const ModelConfig& model, RankBackend backend,
                           Communicator& world, std::shared_ptr<const SampleSource> train,
                           std::shared_ptr<const SampleSource> valid, StepInputs* inputs)
    : config_(config),
      model_(model, config.data.sequence_length, tensor_part(config, world.rank())),
      backend_(std::move(backend)),
      world_(world),
      problem_(make_problem(config, model_, *backend_.kernels, {world.rank()})),
      evaluation_problem_(problem_),
      graph_(build_step_graph(problem_)) {
  together(world, [&] {
    if (problem_.world_size() > kRanksCheckedWhole)
      return throw_diagnostics(check(graph_, config.device.memory_budget.bytes));
    if (world.rank() != 0) return;
    Problem whole = problem_;
    whole.ranks.clear();
    throw_diagnostics(check(build_step_graph(whole), config.device.memory_budget.bytes));
  });
  compare_digests();
  communicators_ = RankCommunicators::make(world, problem_, backend_.transport, *backend_.device);
  clock_.synchronise(world_);

  InputShape shape = input_shape(config, problem_, world.rank());
  if (train) inputs_ = &train_inputs_.emplace(std::move(train), shape);
  if (inputs) inputs_ = inputs;
  require(inputs_ != nullptr, "training needs inputs");
  if (valid) {
    evaluation_problem_.forward_only = true;
    evaluation_problem_.virtual_ranks = 1;
    evaluation_graph_ = build_step_graph(evaluation_problem_);
    shape.ranks = problem_.replicas;
    shape.mine = {problem_.replica_of(world.rank())};
    shape.pad_past_end = true;
    evaluation_batches_ = (valid->size() + shape.global_batch_size - 1) / shape.global_batch_size;
    evaluation_inputs_ = &valid_inputs_.emplace(std::move(valid), shape);
  }
}

TrainingRank::~TrainingRank() = default;

void TrainingRank::compare_digests() {
  // Kernels of another instruction level round differently: replicas would drift apart.
  const uint64_t plan = Hasher().add(problem_.hash()).add(kernels().name()).value();
  if (!all_equal(world_, plan))
    input_error(
        "the ranks do not agree on the plan: start all of them with the same config, data and program, on "
        "machines with the same vector instructions, or set the environment variable TRAINER_MAX_ISA to what "
        "all of them have; this one computes by {}",
        kernels().name());
  // Element [r] of rank p's message is the digest of what p sends to r; r must expect the same.
  const int me = world_.rank();
  std::string mine;
  for (int peer = 0; peer < world_.size(); ++peer) {
    const uint64_t digest = transfer_digest(graph_, me, peer, true);
    mine.append(reinterpret_cast<const char*>(&digest), sizeof digest);
  }
  for (int c : {int{kDataParallel}, int{kTiedEmbedding}, int{kWorld}}) {
    const uint64_t digest = collective_digest(graph_, me, c);
    mine.append(reinterpret_cast<const char*>(&digest), sizeof digest);
  }
  const auto all = all_gather_bytes(world_, mine);
  const auto digest = [&](int rank, int index) {
    uint64_t value;
    std::memcpy(&value, all[static_cast<size_t>(rank)].data() + 8 * index, 8);
    return value;
  };
  for (int peer = 0; peer < world_.size(); ++peer) {
    if (digest(peer, me) != transfer_digest(graph_, me, peer, false))
      input_error("rank {} does not expect the transfers that rank {} makes", me, peer);
    const bool group = problem_.stage_of(peer) == problem_.stage_of(me);
    if (group && digest(peer, world_.size() + kDataParallel) != digest(me, world_.size() + kDataParallel))
      input_error("ranks {} and {} disagree on the order of their data-parallel collectives", me, peer);
    if (digest(peer, world_.size() + kWorld) != digest(me, world_.size() + kWorld))
      input_error("ranks {} and {} disagree on the order of the collectives of all ranks", me, peer);
  }
}

MemoryPlan TrainingRank::memory_plan() const {
  MemoryPlan plan;
  std::vector<const StepGraph*> between;
  if (valid_inputs_) between.push_back(&evaluation_graph_);
  plan.tiers = RankMemory::plan(graph_, between, world_.rank());
  plan.program = resident_memory().now;
  if (!backend_.device->host_reaches()) {
    plan.tables = model_.table_bytes();
    for (const Problem* p : {&problem_, valid_inputs_ ? &evaluation_problem_ : nullptr})
      if (p) plan.tables += DeviceInputs::device_bytes(p->micro_batches, micro_batch_tokens());
  }
  return plan;
}

std::string TrainingRank::describe_plan() const {
  std::string stages;
  for (int s = 0; s < problem_.stages; ++s)
    stages += fmt::format("{}{}", s ? ", " : "", config_.parallel.stage_layers[static_cast<size_t>(s)]);
  std::string tensor;
  if (problem_.tensor_ranks > 1)
    tensor = fmt::format(" x tensor {}{}", problem_.tensor_ranks,
                         model_.part().sequence ? " with sequence parallelism" : "");
  const std::string device = backend_.device->host_reaches()
                                 ? fmt::format("{} threads per rank", config_.device.threads)
                                 : fmt::format("rank {} on {}", world_.rank(), backend_.device->name());
  return fmt::format(
      "{} | pipeline {} (layers {}) x data {}{} | {} micro-batches of {} x {} tokens | {} parameters | {} | "
      "{} | program {:016x}",
      graph_.provenance, problem_.stages, stages, problem_.replicas, tensor, problem_.micro_batches,
      config_.training.micro_batch_size, config_.data.sequence_length, model_.parameter_count(),
      name_of(config_.precision.compute), device, problem_.hash());
}

std::unique_ptr<TrainingBinder> TrainingRank::make_binder(const Problem& problem, StepInputs& inputs,
                                                          WaitLedger* ledger) {
  return std::make_unique<TrainingBinder>(TrainingBinder::Parts{
      problem, world_.rank(), model_, kernels(), *memory_, communicators_, inputs,
      make_optimizer_settings(config_), config_.precision.compute, config_.parallel.grad_sync, ledger,
      &clock_, tensor_ ? &*tensor_ : nullptr, backend_.device.get(), backend_.transfer_kernels.get(), rope_});
}

int64_t TrainingRank::micro_batch_tokens() const {
  return config_.training.micro_batch_size * config_.data.sequence_length;
}

void TrainingRank::place_inputs_and_tables() {
  Device& device = *backend_.device;
  inputs_ = &device_inputs_.emplace(*inputs_, device, problem_.micro_batches, micro_batch_tokens());
  if (evaluation_inputs_)
    evaluation_inputs_ = &device_evaluation_inputs_.emplace(
        *evaluation_inputs_, device, evaluation_problem_.micro_batches, micro_batch_tokens());
  const RopeTables tables = model_.rope_tables();
  if (!tables.cosine) return;
  tables_ = device.allocate(static_cast<size_t>(model_.table_bytes()));
  std::byte* const place = tables_->bytes().data();
  device.compute().copy_in(place, tables.cosine, static_cast<size_t>(model_.table_bytes()));
  device.compute().synchronise();
  rope_ = tables.at(reinterpret_cast<const float*>(place));
}

void TrainingRank::allocate() {
  std::vector<const StepGraph*> between;
  if (valid_inputs_) between.push_back(&evaluation_graph_);
  memory_.emplace(graph_, between, world_.rank(), *backend_.device);
  for (size_t b = 0; b < graph_.buffers.size(); ++b) {
    const auto memory = [&] {
      return std::span(memory_->address(graph_, static_cast<BufferId>(b)),
                       static_cast<size_t>(graph_.buffers[b].bytes));
    };
    if (graph_.buffers[b].name == "workspace") kernels().grant_workspace(memory());
    if (graph_.buffers[b].name == "tensor exchange")
      tensor_.emplace(*communicators_.tensor, memory(), kernels(), backend_.device->compute());
  }
  if (!backend_.device->host_reaches()) place_inputs_and_tables();
  binder_ = make_binder(problem_, *inputs_, &ledger_);
  RuntimeOptions options;
  options.clock = &clock_;
  options.ledger = &ledger_;
  options.traced_steps.insert(config_.run.trace_steps.begin(), config_.run.trace_steps.end());
  runtime_ = std::make_unique<StageRuntime>(graph_, *binder_, std::move(options));
  if (valid_inputs_) {
    evaluation_binder_ = make_binder(evaluation_problem_, *evaluation_inputs_, nullptr);
    evaluation_runtime_ =
        std::make_unique<StageRuntime>(evaluation_graph_, *evaluation_binder_, RuntimeOptions{});
  }
}

void TrainingRank::run(int64_t first_step, int count, const std::function<void(int64_t)>& on_step) {
  binder_->set_first_step(first_step);
  runtime_->run(first_step, count, on_step);
}

ClassifierResult TrainingRank::evaluate(int64_t steps) {
  if (!valid_inputs_) return {};
  if (steps == 0 || steps > evaluation_batches_) steps = evaluation_batches_;
  evaluation_binder_->set_first_step(1);
  evaluation_runtime_->run(1, static_cast<int>(steps), nullptr);
  ClassifierResult mine = evaluation_binder_->take_evaluation();
  if (problem_.tensor_of(world_.rank()) != 0) mine = {};  // the same on all ranks of a tensor-parallel group
  std::array<double, 2> sums{mine.loss_sum, static_cast<double>(mine.valid_tokens)};
  sum_over_ranks(world_, sums);
  return {sums[0], static_cast<int64_t>(sums[1])};
}

Timeline TrainingRank::take_timeline() {
  Timeline timeline = runtime_->take_timeline();
  // The plan's memory over the program, at the moments its compute tasks began.
  std::map<std::string, TierBytes> planned;
  for (const MemoryStep& m : memory_over_program(graph_, world_.rank()))
    planned[graph_.describe(m.task)] = m.in_use;
  for (const TimelineEvent& event : timeline.events) {
    if (event.lane != name_of(LaneKind::kCompute)) continue;
    const TierBytes& bytes = planned.at(event.name);
    timeline.memory.push_back({event.begin, event.rank, bytes[0], bytes[1], bytes[2]});
  }
  return timeline;
}

}  // namespace trainer
