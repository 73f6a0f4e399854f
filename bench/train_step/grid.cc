#include "train_step/grid.h"

#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "base/error.h"
#include "base/philox.h"
#include "comm/in_process.h"
#include "device/arena.h"
#include "device/cores.h"
#include "support/backend.h"
#include "support/program.h"

namespace trainer {
namespace {

// Processor time of each thread that lives, by its id.
std::map<std::string, double> thread_seconds() {
  std::map<std::string, double> seconds;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    double nanoseconds = 0;
    if (std::ifstream(entry.path() / "schedstat") >> nanoseconds)
      seconds[entry.path().filename().string()] = 1e-9 * nanoseconds;
  }
  return seconds;
}

}  // namespace

RandomInputs::RandomInputs(const Config& config, int64_t vocabulary)
    : micro_batch_(config.training.micro_batch_size), sequence_(config.data.sequence_length) {
  const auto count = static_cast<size_t>(config.training.global_batch_size * sequence_);
  const Philox random(static_cast<uint64_t>(config.training.seed));
  tokens_.resize(count + 1);
  positions_.resize(count);
  for (size_t i = 0; i <= count; ++i)
    tokens_[i] = static_cast<int32_t>(random.block(i)[0] % static_cast<uint32_t>(vocabulary));
  for (size_t i = 0; i < count; ++i) positions_[i] = static_cast<int32_t>(i % static_cast<size_t>(sequence_));
}

BatchView RandomInputs::micro_batch(int64_t, int index) {
  const int64_t begin = index * micro_batch_ * sequence_;
  BatchView view;
  view.micro_batch = micro_batch_;
  view.sequence = sequence_;
  view.tokens = tokens_.data() + begin;
  view.labels = tokens_.data() + begin + 1;
  view.positions = positions_.data() + begin;
  return view;
}

Grid::Grid(const std::string& backend, Config config, const ModelConfig& model, int stages, int threads)
    : on_host_(backend == "host"),
      communicators_(make_in_process_group(stages)),
      records_(static_cast<size_t>(stages)),
      ranks_(static_cast<size_t>(stages)) {
  config.parallel.pipeline_parallel_size = stages;
  config.device.threads = threads;
  resolve_parallel(config, model, stages);
  for (int r = 0; r < stages; ++r) inputs_.emplace_back(config, model.vocabulary_size);
  on_every_rank([&](size_t r) {
    RankBackend parts = make_training_backend(backend, config, *communicators_[r]);
    parts.kernels = make_metered_kernels(std::move(parts.kernels), records_[r]);
    ranks_[r] = std::make_unique<TrainingRank>(config, model, std::move(parts), *communicators_[r], nullptr,
                                               nullptr, &inputs_[r]);
  });
}

int64_t Grid::start() {
  int64_t predicted = on_host_ ? resident_memory().now : 0;
  for (const auto& rank : ranks_) {
    const MemoryPlan plan = rank->memory_plan();
    predicted += plan.total() - plan.program;
  }
  on_every_rank([&](size_t r) {
    ranks_[r]->allocate();
    ranks_[r]->initialize_random();
  });
  run_step();
  return predicted;
}

double Grid::step() {
  for (KernelRecord& record : records_) record.on = true;
  const double seconds = run_step();
  for (KernelRecord& record : records_) record.on = false;
  return seconds;
}

double Grid::run_step() {
  const int64_t number = ++steps_;
  const double begin = steady_seconds();
  const std::clock_t processor_begin = std::clock();
  const auto threads_begin = thread_seconds();
  on_every_rank([&](size_t r) { ranks_[r]->run(number, 1, nullptr); });
  const double seconds = steady_seconds() - begin;
  double other = static_cast<double>(std::clock() - processor_begin) / CLOCKS_PER_SEC;
  for (const auto& [thread, all] : thread_seconds())
    if (const auto before = threads_begin.find(thread); before != threads_begin.end())
      other -= all - before->second;
  other_seconds_.push_back(other);
  for (const auto& rank : ranks_)
    if (rank->take_result(number).skipped) run_error("step {} had a gradient that is not finite", number);
  return seconds;
}

RankEvents Grid::take_events() {
  RankEvents events;
  for (const auto& rank : ranks_) events.push_back(rank->take_timeline().events);
  return events;
}

KernelRecord Grid::kernels() const {
  KernelRecord all;
  for (const KernelRecord& record : records_) all += record;
  return all;
}

void Grid::on_every_rank(const std::function<void(size_t)>& body) {
  const size_t count = ranks_.size();
  if (count == 1) return body(0);
  std::vector<std::exception_ptr> errors(count);
  std::vector<std::jthread> threads;
  for (size_t r = 0; r < count; ++r)
    threads.emplace_back([&, r] {
      try {
        bind_to_cores(cores_of_local_rank(allowed_cores(), static_cast<int>(r), static_cast<int>(count)));
        body(r);
      } catch (const std::exception& error) {
        errors[r] = std::current_exception();
        communicators_[r]->abort(error.what());
      }
    });
  threads.clear();
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace trainer
