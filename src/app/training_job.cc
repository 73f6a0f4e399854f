#include "app/training_job.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "app/agreement.h"
#include "app/trace.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/units.h"
#include "comm/collectives.h"

namespace trainer {
namespace {

std::atomic<bool> stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free);

// Steps are run in chunks of about this many seconds, so that a stop is heeded and the figures are current.
constexpr double kChunkSeconds = 1.0;
constexpr int kLongestChunk = 16;

// What a rank knows of one step that rank 0 writes down.
struct StepReport {
  double end;  // on the common clock
  ExposedTime exposed;
};

}  // namespace

TrainingJob::TrainingJob(const Config& config, TrainingData data, std::unique_ptr<KernelSet> kernels,
                         Communicator& world, const std::filesystem::path& directory,
                         double gemm_flops_per_second)
    : config_(config),
      data_(std::move(data)),
      world_(world),
      files_(directory),
      directory_(directory),
      gemm_flops_per_second_(gemm_flops_per_second),
      rank_(std::make_unique<TrainingRank>(config_, data_.model, std::move(kernels), world, data_.train,
                                           data_.valid)) {}

TrainingJob::~TrainingJob() = default;

void TrainingJob::request_stop() { stop_requested = true; }

void TrainingJob::prepare(bool resume) {
  memory_plan_ = rank_->memory_plan();
  if (world_.rank() == 0) write_plan(memory_plan_);
  // Looking for the newest good checkpoint reads all of it, so one rank does it.
  const std::string latest = from_first_rank(world_, [&] {
    const auto found = resume ? find_latest_checkpoint(files_.checkpoints) : std::nullopt;
    return found ? found->string() : std::string();
  });
  together(world_, [&] { rank_->allocate(); });
  together(world_, [&] {
    if (!latest.empty()) {
      restore(latest);
    } else if (!config_.model.initialize_from.empty()) {
      const auto source = open_model_source(config_.model.initialize_from);
      if (world_.rank() == 0) source->check(parameters_of(rank_->model()));
      rank_->initialize_from(*source);
    } else {
      rank_->initialize_random();
    }
  });
  if (world_.rank() != 0) return;
  metrics_.emplace(files_.metrics, done_);
  if (config_.run.tensorboard) tensorboard_.emplace(files_.tensorboard, done_ + 1);
  ProgressOptions options;
  options.style = config_.run.progress;
  options.first_step = done_ + 1;
  options.total_steps = config_.training.steps;
  options.log_interval = config_.training.log_interval;
  options.flops_per_token = rank_->model().flops_per_token(config_.data.sequence_length);
  options.gemm_flops_per_second = gemm_flops_per_second_;
  progress_.emplace(options);
}

void TrainingJob::restore(const std::filesystem::path& directory) {
  const CheckpointReader checkpoint(directory);
  const std::string where = directory.string();
  const std::string order = json_string(checkpoint.state(), "data_fingerprint", where);
  if (order != fmt::format("{:016x}", data_.train->fingerprint()))
    input_error(
        "{} was made with samples in another order (data, split, sequence_length, seed, or so many more "
        "steps that the "
        "number of epochs changed); resuming would repeat or skip data. Restore those keys, or start a new "
        "run "
        "with model.initialize_from",
        where);
  rank_->restore(checkpoint);
  done_ = checkpoint.step();
  consecutive_skips_ = json_integer(checkpoint.state(), "consecutive_skips", where, 0);
  if (world_.rank() == 0) spdlog::info("resuming after step {} from {}", done_, where);
}

void TrainingJob::write_plan(const MemoryPlan& m) {
  spdlog::info("{}", rank_->describe_plan());
  spdlog::info("memory of rank 0: long {}, medium {}, short {}, program {}: total {}",
               format_bytes(m.tiers[0]), format_bytes(m.tiers[1]), format_bytes(m.tiers[2]),
               format_bytes(m.program), format_bytes(m.total()));
  const Problem& p = rank_->problem();
  Json plan;
  plan["program"] = rank_->graph().provenance;
  plan["program_hash"] = fmt::format("{:016x}", p.hash());
  plan["pipeline_parallel_size"] = p.stages;
  plan["data_parallel_size"] = p.replicas;
  plan["layers_per_stage"] = config_.parallel.stage_layers;
  plan["micro_batches"] = p.micro_batches;
  plan["parameters"] = rank_->model().parameter_count();
  plan["ideal_bubble"] = static_cast<double>(p.stages - 1) / (p.micro_batches + p.stages - 1);
  plan["memory_rank_0"] = {{"long", m.tiers[0]},
                           {"medium", m.tiers[1]},
                           {"short", m.tiers[2]},
                           {"program", m.program},
                           {"total", m.total()}};
  plan["gemm_flops_per_second"] = gemm_flops_per_second_;
  write_file_atomically(files_.plan, plan.dump(2) + "\n");
}

int TrainingJob::next_chunk(int64_t done, double step_seconds) const {
  int64_t count = std::clamp<int64_t>(static_cast<int64_t>(kChunkSeconds / std::max(step_seconds, 1e-3)), 1,
                                      kLongestChunk);
  count = std::min(count, config_.training.steps - done);
  for (int64_t interval : {config_.training.eval_interval, config_.checkpoint.save_interval})
    if (interval > 0) count = std::min(count, interval - done % interval);
  return static_cast<int>(count);
}

JobSummary TrainingJob::train() {
  const double begin = rank_->clock().now();
  double chunk_begin = begin, step_seconds = kChunkSeconds;
  while (done_ < config_.training.steps) {
    const int count = next_chunk(done_, step_seconds);
    chunk_begin = rank_->clock().now();
    step_ends_.assign(1, chunk_begin);
    rank_->run(done_ + 1, count, [&](int64_t) { step_ends_.push_back(rank_->clock().now()); });
    record_chunk(done_ + 1, count);
    done_ += count;

    const auto& t = config_.training;
    const bool last = done_ == t.steps;
    std::optional<double> valid_loss;
    if (data_.valid && (done_ % t.eval_interval == 0 || last)) {
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
    std::array<double, 2> shared{stop_requested ? 1.0 : 0.0, (rank_->clock().now() - chunk_begin) / count};
    max_over_ranks(world_, shared);
    step_seconds = shared[1];
    const bool stop = shared[0] > 0;
    const int64_t interval = config_.checkpoint.save_interval;
    if ((interval > 0 && done_ % interval == 0) || stop || (last && config_.checkpoint.save_at_end))
      save(done_);
    if (stop) {
      if (world_.rank() == 0)
        progress_->note(fmt::format("stopped after step {}; --resume goes on from here", done_));
      break;
    }
  }
  progress_.reset();
  write_traces();
  summary_.steps = done_;
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

void TrainingJob::check_skips(const StepResult& result, int64_t step) {
  consecutive_skips_ = result.skipped ? consecutive_skips_ + 1 : 0;
  if (!result.skipped && std::isfinite(result.loss)) return;
  if (world_.rank() == 0)
    progress_->note(
        result.valid_tokens == 0
            ? fmt::format("step {}: no valid tokens; skipped, nothing changed", step)
            : fmt::format("step {}: loss {}, gradient norm {}; {}", step, result.loss, result.gradient_norm,
                          result.skipped ? "skipped, nothing changed" : "not skipped, as configured"));
  if (result.valid_tokens > 0 && consecutive_skips_ >= config_.optimizer.max_consecutive_skips)
    run_error(
        "loss or gradient norm was not finite in {} steps in a row, the last being step {} (norm {}); the "
        "last good "
        "checkpoint is in {}. Lower optimizer.lr or look at the data of these steps",
        consecutive_skips_, step, result.gradient_norm, files_.checkpoints.string());
}

void TrainingJob::record_chunk(int64_t first, int count) {
  std::vector<StepResult> results;
  std::string mine;
  for (int i = 0; i < count; ++i) {
    results.push_back(rank_->take_result(first + i));
    StepReport report{step_ends_[static_cast<size_t>(i) + 1], rank_->take_account(first + i).exposed};
    mine.append(reinterpret_cast<const char*>(&report), sizeof report);
  }
  const auto all = gather(world_, mine, 0);
  const auto report = [&](size_t rank, int step) {
    StepReport r;
    std::memcpy(&r, all[rank].data() + static_cast<size_t>(step) * sizeof r, sizeof r);
    return r;
  };
  const auto ranks = static_cast<double>(world_.size());
  double begin = step_ends_.front();
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
      for (size_t r = 0; r < all.size(); ++r) {
        const StepReport s = report(r, i);
        end = std::max(end, s.end);
        m.exposed.bubble += s.exposed.bubble / ranks;
        m.exposed.boundary += s.exposed.boundary / ranks;
        m.exposed.grad_sync += s.exposed.grad_sync / ranks;
        m.exposed.update += s.exposed.update / ranks;
        m.exposed.prefetch += s.exposed.prefetch / ranks;
        m.exposed.recovery += s.exposed.recovery / ranks;
      }
      m.step_seconds = end - begin;
      begin = end;
      m.tokens_per_second =
          static_cast<double>(config_.training.global_batch_size * config_.data.sequence_length) /
          m.step_seconds;
      m.memory = {memory_plan_.tiers[0], memory_plan_.tiers[1], memory_plan_.tiers[2]};
      m.consumed_samples = m.step * config_.training.global_batch_size;
      m.skipped = result.skipped;
      step_seconds_.push_back(m.step_seconds);
      if (pending_) publish(*pending_);
      pending_ = m;
    }
    check_skips(result, first + i);
  }
}

void TrainingJob::publish(const StepMetrics& metrics) {
  metrics_->write(metrics);
  if (tensorboard_) write_step(*tensorboard_, metrics);
  progress_->step(metrics);
}

Json TrainingJob::state() const {
  Json state;
  state["model"] = model_config_to_hugging_face(data_.model);
  state["updates_done"] = rank_->updates_done();
  state["consecutive_skips"] = consecutive_skips_;
  state["data_fingerprint"] = fmt::format("{:016x}", data_.train->fingerprint());
  state["config"] = config_to_json(config_);
  return state;
}

void TrainingJob::save(int64_t step) {
  const auto& root = files_.checkpoints;
  const std::filesystem::path directory =
      from_first_rank(world_, [&] { return begin_checkpoint(root, step).string(); });
  // A rank that cannot write must not leave the others waiting, nor the old checkpoint replaced.
  try {
    together(world_, [&] { write_part(directory, world_.rank(), rank_->checkpoint_tensors()); });
  } catch (const Error& error) {
    if (world_.rank() == 0) abandon_checkpoint(directory);
    run_error("step {} could not be saved: {}", step, error.what());
  }
  together(world_, [&] {
    if (world_.rank() != 0) return;
    std::vector<PartInfo> parts;
    for (int r = 0; r < world_.size(); ++r) parts.push_back(read_part_info(directory, r));
    finish_checkpoint(directory, parts, {step, step * config_.training.global_batch_size, state()});
    rotate_checkpoints(root, static_cast<int>(config_.checkpoint.keep_last));
  });
}

void TrainingJob::write_traces() {
  if (config_.run.trace_steps.empty()) return;
  const auto all = gather(world_, trace_json(rank_->take_timeline()).dump(), 0);
  if (world_.rank() != 0) return;
  Timeline whole;
  for (size_t r = 0; r < all.size(); ++r) {
    const Timeline part = parse_trace(parse_json(all[r], "trace"), "trace");
    whole.events.insert(whole.events.end(), part.events.begin(), part.events.end());
    whole.memory.insert(whole.memory.end(), part.memory.begin(), part.memory.end());
  }
  for (int64_t step : config_.run.trace_steps) {
    Timeline one;
    double begin = 1e300, end = 0;
    for (const TimelineEvent& e : whole.events)
      if (e.step == step) {
        one.events.push_back(e);
        begin = std::min(begin, e.begin);
        end = std::max(end, e.end);
      }
    for (const MemorySample& m : whole.memory)
      if (m.time >= begin && m.time <= end) one.memory.push_back(m);
    if (one.events.empty()) continue;
    write_trace(trace_path(directory_, step), one);
  }
}

}  // namespace trainer
