#include "app/profile.h"

#include "app/agreement.h"
#include "app/cycle_profile.h"
#include "app/kernels.h"
#include "app/options.h"
#include "app/parallel_command.h"
#include "app/profile_check.h"
#include "base/file.h"
#include "base/log.h"
#include "device/cores.h"

namespace trainer {
namespace {

constexpr const char* kProfileUsage = R"(usage: trainer profile CONFIG... [options]

Measures this machine for the layers of the configs' models, their micro-batches, precision and threads, and
writes a platform file (docs/platforms.md) that 'trainer simulate' and 'trainer plan' read. Under mpirun all
ranks measure at the same time, each by itself and as stages of pipelines, and messages and sums between them are
measured too: start as many ranks as the plans have on a machine. No dataset is read.

With device.kind mt3000-sim nothing is measured: cycles of the layers are counted on a simulated cluster, whatever
their size, and all but them is the platform mt3000's.

  --out FILE               where to write it (default: this-machine.json)
  --steps N                recorded training steps of each program (default 12)
  --check FILE             runs the configs' plans as well, in turn with profiles, and writes a list of
                           {config, measured_seconds, predicted_seconds, step_seconds, error}
                           instead of a platform
  --rounds N               of --check (default 5)
  --set SECTION.KEY=VALUE  changes one key of every config; may be given several times
)";

constexpr VariantSteps kCheckedSteps{.warm_up = 1, .measured = 4};

struct ProfileRequest {
  std::vector<std::string> files;
  std::vector<ProfileSubject> subjects;
  std::string out;
  std::optional<std::string> check;
  int steps = 0, rounds = 0;

  bool counted() const { return is_simulated(subjects.front().config.device); }
};

ProfileRequest parse_profile_request(std::span<const std::string> words, int cores) {
  const ConfigArguments arguments =
      read_config_arguments(words, {"--out", "--steps", "--check", "--rounds"}, {}, true);
  ProfileRequest r;
  r.files = arguments.configs;
  r.out = arguments.options.find("--out").value_or("this-machine.json");
  r.steps = static_cast<int>(arguments.options.integer("--steps", 12, 1));
  r.check = arguments.options.find("--check");
  r.rounds = static_cast<int>(arguments.options.integer("--rounds", 5, 1));
  if (!r.check && arguments.options.has("--rounds")) input_error("--rounds goes with --check");
  if (r.check && arguments.options.has("--out")) input_error("--check writes no platform: leave out --out");
  for (const std::string& path : r.files)
    r.subjects.push_back(read_profile_subject(path, arguments.overrides, cores));
  for (size_t s = 1; s < r.subjects.size(); ++s)
    if (r.subjects[s].config.device.kind != r.subjects[0].config.device.kind)
      input_error("{} and {} differ in 'device.kind'; a platform is of one kind", r.files[0], r.files[s]);
  if (r.check && r.counted())
    input_error("--check runs plans against the clock; 'device.kind' of {} is simulated", r.files[0]);
  return r;
}

void write_checks(const MpiEnvironment& mpi, Communicator& world, ProfileRequest& r,
                  const MachineProfiler& profiler) {
  std::vector<TrainingData> data;
  together(world, [&] {
    for (ProfileSubject& s : r.subjects) {
      s.config.training.steps = kCheckedSteps.total();
      s.config.training.eval_interval = 0;
      data.push_back(open_training(s.config, mpi));
    }
  });
  const auto plans = check_profile(profiler, world, r.files, r.subjects, data, kCheckedSteps, r.rounds);
  if (mpi.rank() == 0) write_file_atomically(*r.check, checked_plans_json(plans));
}

void write_platform(Communicator& world, const ProfileRequest& r, const Platform& platform) {
  if (world.rank() != 0) return;
  write_file_atomically(r.out, platform_to_json(platform).dump(2) + "\n");
  log_info("{}: {} layer shapes; written to {}", platform.source, platform.measured.size(), r.out);
}

Platform measured_platform(const ProfileRequest& r, const MachineProfiler& profiler,
                           const Communicator& world) {
  MachineProfile profile = profiler.measure_links();
  for (const ProfileSubject& s : r.subjects) profiler.measure_layers(s, 1, profile);
  for (const ProfileSubject& s : r.subjects) {
    const int stages = profiled_stages(world.size(), s.model);
    if (stages > 1)
      profiler.measure_layers(s, stages, profile);
    else if (world.size() > 1 && world.rank() == 0)
      log_info("{} ranks have no divisor of at most {} for stages: layers are not measured in pipelines",
               world.size(), std::min<int64_t>(kProfiledBlocks, s.model.num_layers));
  }
  return to_platform(profile);
}

Platform counted_platform(const ProfileRequest& r) {
  MachineProfile profile;
  for (const ProfileSubject& s : r.subjects) add_layers(profile, count_layers(s.config, s.model));
  return simulated_platform(std::move(profile.layers));
}

int profile(const MpiEnvironment& mpi, std::span<const std::string> words) {
  const auto world = mpi.world();
  configure_logging(mpi.rank(), mpi.size());
  const auto cores = cores_of_local_rank(allowed_cores(), mpi.local_rank(), mpi.local_size());
  bind_to_cores(cores);
  const auto core_count = static_cast<int>(cores.size());
  ProfileRequest request;
  together(*world, [&] { request = parse_profile_request(words, core_count); });
  if (request.counted()) {
    write_platform(*world, request, counted_platform(request));
    return 0;
  }
  const MachineProfiler profiler(mpi, *world, request.subjects, core_count, request.steps);
  if (request.check)
    write_checks(mpi, *world, request, profiler);
  else
    write_platform(*world, request, measured_platform(request, profiler, *world));
  return 0;
}

}  // namespace

int profile_command(std::span<const std::string> arguments) {
  return run_parallel_command({"profile", kProfileUsage}, arguments,
                              [&](const MpiEnvironment& mpi) { return profile(mpi, arguments); });
}

}  // namespace trainer
