#include "app/train.h"

#include <csignal>
#include <filesystem>
#include <optional>
#include <set>

#include "app/agreement.h"
#include "app/kernels.h"
#include "app/options.h"
#include "app/parallel_command.h"
#include "app/report.h"
#include "app/training_job.h"
#include "base/file.h"
#include "base/log.h"
#include "base/units.h"
#include "comm/collectives.h"

namespace trainer {
namespace {

constexpr const char* kTrainUsage =
    R"(usage: trainer train CONFIG.json [--set SECTION.KEY=VALUE ...] [--resume]

Trains a model, alone or as one rank under mpirun or srun:
  mpirun -n 2 build/trainer train configs/quickstart.json --set training.steps=100

  --set SECTION.KEY=VALUE   replaces a value of the config (docs/configuration.md lists the keys)
  --resume                  goes on from the newest complete checkpoint of run.directory
)";

// What may not change under a run without changing what it learns. Keys named by --set in the optimizer
// section are meant to change.
void check_same_run(const Config& config, const std::filesystem::path& stored,
                    const std::vector<std::string>& overrides) {
  const Json before = parse_json_file(stored.string()), now = config_to_json(config);
  const std::set<std::string> free_training = {"steps", "eval_interval", "eval_steps", "log_interval"};
  for (const char* section : {"model", "data", "training", "precision", "optimizer"})
    for (const auto& [key, value] : now.at(section).items()) {
      const std::string path = fmt::format("{}.{}", section, key);
      if (section == std::string("training") && free_training.count(key)) continue;
      if (path == "model.initialize_from") continue;
      const bool explicitly = section == std::string("optimizer") &&
                              std::any_of(overrides.begin(), overrides.end(),
                                          [&](const std::string& o) { return o.starts_with(path + "="); });
      const Json old =
          before.contains(section) && before[section].contains(key) ? before[section][key] : Json();
      if (old == value || explicitly) continue;
      input_error(
          "cannot resume: '{}' was {} in {} and is {} now, which would train another model. Restore it{}",
          path, old.dump(), stored.string(), value.dump(),
          section == std::string("optimizer")
              ? fmt::format(", or say --set {}={} to change it on purpose", path, value.dump())
              : std::string(", or start a new run directory"));
    }
}

void prepare_directory(const Config& config, const std::vector<std::string>& overrides, bool resume) {
  namespace fs = std::filesystem;
  const fs::path directory = config.run.directory;
  const RunFiles files(directory);
  if (resume) {
    if (!fs::exists(files.config))
      input_error("--resume: {} holds no run (no {})", directory.string(), files.config.filename().string());
    check_same_run(config, files.config, overrides);
  } else if (fs::exists(directory) && !fs::is_empty(directory)) {
    input_error(
        "run.directory {} exists already; go on with it by --resume, or choose another with --set "
        "run.directory=...",
        directory.string());
  }
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) input_error("cannot make run.directory {}: {}", directory.string(), error.message());
  write_file_atomically(files.config, config_to_json(config).dump(2) + "\n");
}

void handle_signal(int) { TrainingJob::request_stop(); }

// On the host the rate of a core is that of any product of some hundred rows, and a training that has yet to
// begin waits for it: so few rows are enough.
constexpr int64_t kHostRateTokens = 512;
constexpr double kHostRateSeconds = 0.2;

double measure_rate(const RankBackend& backend, const Model& model, const Config& config) {
  const bool host = backend.device->host_reaches();
  const int64_t tokens = config.training.micro_batch_size * config.data.sequence_length;
  const auto shapes =
      feed_forward_products(model.config(), host ? std::min(tokens, kHostRateTokens) : tokens);
  return measure_gemm_rate(*backend.kernels, config.precision.compute, shapes,
                           host ? kHostRateSeconds : kGemmRateSeconds, *backend.device);
}

int train(const MpiEnvironment& mpi, std::span<const std::string> words) {
  StartTimes times("program and MPI");
  const auto world = mpi.world();
  configure_logging(mpi.rank(), mpi.size());
  std::optional<ConfigArguments> arguments;
  bool resume = false;
  Config config;
  TrainingData data;
  RankBackend backend;
  std::unique_ptr<TrainingJob> job;
  together(*world, [&] {
    arguments = read_config_arguments(words, {}, {"--resume"});
    resume = arguments->options.has("--resume");
    config = read_config(arguments->config, arguments->overrides);
    if (config.run.directory.empty())
      input_error("{}: key 'run.directory' is missing: where the run is kept", arguments->config);
    data = open_training(config, mpi);
  });
  times.part("config and data");
  double gemm_rate = 0;
  together(*world, [&] {
    backend = make_backend(config, *world);
    if (is_simulated(config.device)) {
      log_info("{}: times and rates below are those of the simulation, not the device's",
               backend.kernels->name());
      return;
    }
    std::array<double, 1> rate{measure_rate(backend, Model(data.model, config.data.sequence_length), config)};
    sum_over_ranks(*world, rate);
    gemm_rate = rate[0];
  });
  times.part("rate of matrix products");
  together(*world, [&] {
    if (mpi.rank() == 0) prepare_directory(config, arguments->overrides, resume);
  });
  together(*world, [&] {
    job = std::make_unique<TrainingJob>(config, std::move(data), std::move(backend), *world,
                                        config.run.directory, gemm_rate);
  });
  times.part("plan");
  job->prepare(resume, &times);
  log_info("{}", times.describe());
  // SIGUSR1 is what mpirun passes on to its ranks; SIGTERM and SIGINT to mpirun leave them too little time.
  for (int signal : {SIGTERM, SIGINT, SIGUSR1}) std::signal(signal, handle_signal);
  const JobSummary s = job->train();
  if (mpi.rank() == 0) {
    const RunFiles files(config.run.directory);
    Json summary;
    summary["steps"] = s.steps;
    summary["ranks"] = mpi.size();
    summary["ready_seconds"] = times.seconds();
    summary["train_seconds"] = s.train_seconds;
    summary["tokens_per_second"] = s.tokens_per_second;
    summary["loss"] = s.last_loss;
    if (s.valid_loss) summary["valid_loss"] = *s.valid_loss;
    summary["predicted_memory_bytes"] = s.predicted_memory;
    summary["peak_memory_bytes"] = s.peak_memory;
    const Json counted = counted_cycles(job->rank().kernels());
    if (!counted.is_null()) summary["simulated_rank_0"] = counted;
    write_file_atomically(files.summary, summary.dump(2) + "\n");
    write_report(config.run.directory);
    log_info("{} steps in {}, {} tokens/s; memory predicted {}, peak {}; run directory {}", s.steps,
             format_seconds(s.train_seconds), format_count(s.tokens_per_second),
             format_bytes(static_cast<double>(s.predicted_memory)),
             format_bytes(static_cast<double>(s.peak_memory)), config.run.directory);
    if (!counted.is_null())
      log_info("{}: rank 0 counted {} cycles, {} there; times above are those of the simulation",
               counted["device"].get<std::string>(), format_count(counted["cycles"].get<double>()),
               format_seconds(counted["seconds"].get<double>()));
  }
  return 0;
}

}  // namespace

int train_command(std::span<const std::string> arguments) {
  return run_parallel_command({"train", kTrainUsage}, arguments,
                              [&](const MpiEnvironment& mpi) { return train(mpi, arguments); });
}

}  // namespace trainer
