#include "app/training_job.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "app/account_bytes.h"
#include "app/agreement.h"
#include "app/main_path_replay.h"
#include "app/trace.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/units.h"
#include "comm/collectives.h"
#include "device/arena.h"
#include "schedule/passes.h"
#include "sim/measured_costs.h"
#include "sim/step_analysis.h"

namespace trainer {
namespace {

std::atomic<bool> stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free);

// Steps are run in chunks of about this many seconds, so that a stop is heeded and the figures are current.
// Within a chunk a step begins before the one before it has ended.
constexpr double kChunkSeconds = 4.0;
constexpr int kShortestChunk = 2, kLongestChunk = 64;

// What a rank knows of one step that rank 0 writes down.
struct StepReport {
  double begin = 0;  // of the whole chunk, on the common clock
  WaitLedger::StepAccount account;
};

}  // namespace

TrainingJob::TrainingJob(const Config& config, TrainingData data, RankBackend backend, Communicator& world,
                         const std::filesystem::path& directory, double gemm_flops_per_second)
    : config_(config),
      data_(std::move(data)),
      world_(world),
      files_(directory),
      directory_(directory),
      gemm_flops_per_second_(gemm_flops_per_second),
      rank_(std::make_unique<TrainingRank>(config_, data_.model, std::move(backend), world, data_.train,
                                           data_.valid)),
      state_(config_, data_, *rank_, world) {}

TrainingJob::~TrainingJob() = default;

void TrainingJob::request_stop() { stop_requested = true; }

void TrainingJob::prepare(bool resume, StartTimes* times) {
  memory_plan_ = rank_->memory_plan();
  plan_background_saves();
  if (world_.rank() == 0) write_plan(memory_plan_);
  together(world_, [&] { rank_->allocate(); });
  if (times) times->part("memory");
  const std::string latest = resume ? state_.restore_newest(files_.checkpoints) : std::string();
  if (latest.empty()) state_.initialize();
  if (times) times->part(latest.empty() ? "weights" : "checkpoint");
  if (background_saves_) state_.expect_background_saves();
  if (world_.rank() != 0) return;
  replay_.emplace(rank_->problem());
  if (!latest.empty()) log_info("resuming after step {} from {}", state_.step(), latest);
  metrics_.emplace(files_.metrics, state_.step());
  if (config_.run.tensorboard) tensorboard_.emplace(files_.tensorboard, state_.step() + 1);
  ProgressOptions options;
  options.style = config_.run.progress;
  options.first_step = state_.step() + 1;
  options.total_steps = config_.training.steps;
  options.log_interval = config_.training.log_interval;
  options.flops_per_token = rank_->model().flops_per_token(config_.data.sequence_length);
  options.gemm_flops_per_second = gemm_flops_per_second_;
  progress_.emplace(options);
}

// All ranks decide alike: where one of them has no room for the copy, none saves in the background.
void TrainingJob::plan_background_saves() {
  const CheckpointSection& c = config_.checkpoint;
  if (!c.background || c.save_interval == 0 || c.save_interval >= config_.training.steps) return;
  const int64_t copy = rank_->checkpoint_bytes(), budget = config_.device.memory_budget.bytes;
  const TierBytes& tiers = memory_plan_.tiers;
  // The budget is of the device's memory, the copy lies in the host's.
  double lacking = 0;
  if (budget > 0 && rank_->state_on_host())
    lacking = static_cast<double>(tiers[0] + tiers[1] + tiers[2] + copy - budget);
  max_over_ranks(world_, std::span(&lacking, 1));
  background_saves_ = lacking <= 0;
  if (background_saves_)
    memory_plan_.checkpoint_copy = copy;
  else if (world_.rank() == 0)
    log_info(
        "training waits while checkpoints are written: the copy for saving in the background would need {} "
        "more than key 'device.memory_budget' allows",
        format_bytes(lacking));
}

void TrainingJob::write_plan(const MemoryPlan& m) {
  log_info("{}", rank_->describe_plan());
  const auto copy = m.checkpoint_copy > 0 ? fmt::format(", copy of the state for checkpoints {}",
                                                        format_bytes(static_cast<double>(m.checkpoint_copy)))
                                          : std::string();
  log_info("memory of rank 0: long {}, medium {}, short {}, program {}{}: total {}", format_bytes(m.tiers[0]),
           format_bytes(m.tiers[1]), format_bytes(m.tiers[2]), format_bytes(m.program), copy,
           format_bytes(m.total()));
  const Problem& p = rank_->problem();
  Json plan;
  plan["program"] = rank_->graph().provenance;
  plan["program_hash"] = fmt::format("{:016x}", p.hash());
  plan["pipeline_parallel_size"] = p.stages;
  plan["data_parallel_size"] = p.replicas;
  plan["tensor_parallel_size"] = p.tensor_ranks;
  plan["layers_per_stage"] = config_.parallel.stage_layers;
  plan["micro_batches"] = p.micro_batches;
  plan["parameters"] = rank_->model().parameter_count();
  plan["ideal_bubble"] = static_cast<double>(p.stages - 1) / (p.micro_batches + p.stages - 1);
  plan["memory_rank_0"] = {{"long", m.tiers[0]},
                           {"medium", m.tiers[1]},
                           {"short", m.tiers[2]},
                           {"program", m.program},
                           {"checkpoint_copy", m.checkpoint_copy},
                           {"total", m.total()}};
  plan["gemm_flops_per_second"] = gemm_flops_per_second_;
  write_file_atomically(files_.plan, plan.dump(2) + "\n");
}

int TrainingJob::next_chunk(int64_t done, double step_seconds) const {
  int64_t count = std::clamp<int64_t>(static_cast<int64_t>(kChunkSeconds / std::max(step_seconds, 1e-3)),
                                      kShortestChunk, kLongestChunk);
  count = std::min(count, config_.training.steps - done);
  for (int64_t interval : {config_.training.eval_interval, config_.checkpoint.save_interval})
    if (interval > 0) count = std::min(count, interval - done % interval);
  return static_cast<int>(count);
}

JobSummary TrainingJob::train() {
  const double begin = rank_->clock().now();
  double chunk_begin = begin, step_seconds = kChunkSeconds;
  while (state_.step() < config_.training.steps) {
    const int64_t first = state_.step() + 1;
    const int count = next_chunk(state_.step(), step_seconds);
    chunk_begin = rank_->clock().now();
    rank_->run(first, count, nullptr);
    record_chunk(first, count, chunk_begin);

    const auto& t = config_.training;
    const int64_t done = state_.step();
    const bool last = done == t.steps;
    std::optional<double> valid_loss;
    if (data_.valid && (done % t.eval_interval == 0 || last)) {
      const ClassifierResult result = rank_->evaluate(t.eval_steps);
      if (result.valid_tokens > 0) valid_loss = result.loss_sum / static_cast<double>(result.valid_tokens);
      summary_.valid_loss = valid_loss;
    }
    if (pending_) {
      pending_->valid_loss = valid_loss;
      publish(*pending_);
      pending_.reset();
    }
    // One decision for all ranks, whichever of them was told to stop.
    std::array<double, 3> shared{stop_requested ? 1.0 : 0.0, (rank_->clock().now() - chunk_begin) / count,
                                 state_.writing() ? 1.0 : 0.0};
    max_over_ranks(world_, shared);
    step_seconds = shared[1];
    const bool stop = shared[0] > 0, written = shared[2] == 0;
    if (written || stop || last) state_.finish_save();
    const int64_t interval = config_.checkpoint.save_interval;
    const bool due = interval > 0 && done % interval == 0;
    if (due && !last && !stop && background_saves_)
      state_.begin_save(files_.checkpoints);
    else if (due || stop || (last && config_.checkpoint.save_at_end))
      state_.save(files_.checkpoints);
    if (stop) {
      if (world_.rank() == 0)
        progress_->note(fmt::format("stopped after step {}; --resume goes on from here", done));
      break;
    }
  }
  progress_.reset();
  write_traces();
  summary_.steps = state_.step();
  summary_.train_seconds = rank_->clock().now() - begin;
  std::sort(step_seconds_.begin(), step_seconds_.end());
  const auto tokens = static_cast<double>(config_.training.global_batch_size * config_.data.sequence_length);
  if (!step_seconds_.empty()) summary_.tokens_per_second = tokens / step_seconds_[step_seconds_.size() / 2];
  std::array<double, 2> memory{static_cast<double>(memory_plan_.total()),
                               static_cast<double>(resident_memory().peak)};
  max_over_ranks(world_, memory);
  summary_.predicted_memory = static_cast<int64_t>(memory[0]);
  summary_.peak_memory = static_cast<int64_t>(memory[1]);
  return summary_;
}

void TrainingJob::note_skip(const StepResult& result, int64_t step) {
  if (!result.skipped && std::isfinite(result.loss)) return;
  if (world_.rank() == 0)
    progress_->note(
        result.valid_tokens == 0
            ? fmt::format("step {}: no valid tokens; skipped, nothing changed", step)
            : fmt::format("step {}: loss {}, gradient norm {}; {}", step, result.loss, result.gradient_norm,
                          result.skipped ? "skipped, nothing changed" : "not skipped, as configured"));
}

void TrainingJob::record_chunk(int64_t first, int count, double chunk_begin) {
  std::vector<StepResult> results;
  std::string mine;
  for (int i = 0; i < count; ++i) {
    results.push_back(rank_->take_result(first + i));
    put_bytes(mine, chunk_begin);
    put_bytes(mine, rank_->take_account(first + i));
  }
  const auto all = gather(world_, mine, 0);
  std::vector<std::vector<StepReport>> reports(static_cast<size_t>(count));  // [step][rank]
  for (std::string_view bytes : all)
    for (auto& step : reports) {
      StepReport& r = step.emplace_back();
      take_bytes(bytes, r.begin);
      take_bytes(bytes, r.account);
    }
  const auto ranks = static_cast<double>(world_.size());
  // Ranks enter a chunk at different moments; those that came first already wait.
  double begin = chunk_begin;
  if (world_.rank() == 0)
    for (const StepReport& r : reports.front()) begin = std::min(begin, r.begin);
  for (int i = 0; i < count; ++i) {
    const StepResult& result = results[static_cast<size_t>(i)];
    summary_.last_loss = result.loss;
    if (world_.rank() == 0) {
      StepMetrics m;
      m.step = first + i;
      m.loss = result.valid_tokens > 0 ? result.loss : std::nan("");
      m.grad_norm = result.gradient_norm;
      m.learning_rate = result.learning_rate;
      double end = 0;
      std::vector<WaitLedger::StepAccount> accounts;
      for (const StepReport& r : reports[static_cast<size_t>(i)]) {
        end = std::max(end, r.account.end);
        const ExposedTime& e = r.account.exposed;
        m.exposed.bubble += e.bubble / ranks;
        m.exposed.boundary += e.boundary / ranks;
        m.exposed.grad_sync += e.grad_sync / ranks;
        m.exposed.update += e.update / ranks;
        m.exposed.prefetch += e.prefetch / ranks;
        m.exposed.recovery += e.recovery / ranks;
        m.ranks.push_back({r.account.main_path, e});
        accounts.push_back(r.account);
      }
      m.main_path_seconds = replay_->seconds(accounts);
      m.step_seconds = end - begin;
      begin = end;
      m.tokens_per_second =
          static_cast<double>(config_.training.global_batch_size * config_.data.sequence_length) /
          m.step_seconds;
      m.memory = memory_plan_.tiers;
      m.consumed_samples = m.step * config_.training.global_batch_size;
      m.skipped = result.skipped;
      step_seconds_.push_back(m.step_seconds);
      if (pending_) publish(*pending_);
      pending_ = m;
    }
    note_skip(result, first + i);
    try {
      state_.complete(first + i, result);
    } catch (const RunError&) {
      // All ranks are here. None brings the job down before rank 0 has written what it knows of this step,
      // and a checkpoint that was begun is complete.
      if (pending_) publish(*pending_);
      finish_save_before_failing();
      world_.barrier();
      throw;
    }
  }
}

void TrainingJob::finish_save_before_failing() {
  try {
    state_.finish_save();
  } catch (const Error& error) {
    if (world_.rank() == 0) log_warning("{}", error.what());
  }
}

void TrainingJob::publish(const StepMetrics& metrics) {
  metrics_->write(metrics);
  if (tensorboard_) write_step(*tensorboard_, metrics);
  progress_->step(metrics);
}

void TrainingJob::write_traces() {
  if (config_.run.trace_steps.empty()) return;
  const Timeline whole = gather_timeline(world_, rank_->take_timeline());
  if (world_.rank() != 0) return;
  for (const int64_t step : config_.run.trace_steps)
    if (const Timeline one = step_of(whole, step); !one.events.empty())
      write_trace(trace_path(directory_, step), one);
  if (!whole.events.empty()) write_simulated_step(whole);
}

// The program of all ranks on virtual time, its tasks as long as the traced ones: what should have happened.
void TrainingJob::write_simulated_step(const Timeline& measured) {
  if (rank_->problem().world_size() > kRanksSimulated) return;
  const MeasuredProgram program = measured_program(rank_->problem(), measured);
  const auto step = static_cast<int>(config_.run.trace_steps.front());
  const Simulation simulation = simulate(program.graph, program.costs, kStepsToSteadyState);
  write_trace(simulated_trace_path(directory_),
              step_of(to_timeline(program.graph, simulation, step - 1), step));
}

}  // namespace trainer
