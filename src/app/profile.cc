#include "app/profile.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>

#include "app/agreement.h"
#include "app/options.h"
#include "app/parallel_command.h"
#include "app/training_data.h"
#include "base/file.h"
#include "base/log.h"
#include "base/statistics.h"
#include "base/units.h"
#include "device/arena.h"
#include "device/cores.h"
#include "ops/gemm_rate.h"

namespace trainer {
namespace {

constexpr const char* kProfileUsage = R"(usage: trainer profile CONFIG... [options]

Measures this machine for the layers of the configs' models, their micro-batches, precision and threads, and
writes a platform file (docs/platforms.md) that 'trainer simulate' and 'trainer plan' read. Under mpirun all
ranks measure at the same time, and messages and sums between them are measured too: start as many ranks as
the plans have on a machine. No dataset is read.

  --out FILE               where to write it (default: this-machine.json)
  --steps N                recorded training steps of each program (default 5)
  --set SECTION.KEY=VALUE  changes one key of every config; may be given several times
)";

constexpr int64_t kCopyBytes = int64_t{64} << 20;  // of each array; beyond what caches hold
constexpr int kCopies = 5;
constexpr int64_t kLeastSum = int64_t{1} << 20, kLongestSum = int64_t{8} << 20;  // bytes

struct Subject {
  Config config;
  ModelConfig model;
};

Subject read_subject(const std::string& path, const std::vector<std::string>& overrides, int cores) {
  Subject s;
  s.config = read_config(path, overrides);
  if (s.config.parallel.tensor_parallel_size > 1)
    input_error("{}: 'parallel.tensor_parallel_size' is {}; layers that are cut over ranks are not measured",
                path, s.config.parallel.tensor_parallel_size);
  if (s.config.device.kind != DeviceKind::kHost)
    input_error("{}: only the host is measured; set key 'device.kind' to \"host\"", path);
  if (s.config.device.threads == 0) s.config.device.threads = cores;
  int64_t vocabulary = 0;
  if (s.config.model.vocabulary_size == 0 && !s.config.data.tokenizer.empty())
    vocabulary = load_tokenizer(s.config.data.tokenizer)->vocabulary_size();
  s.model = make_model_config(s.config, vocabulary);
  return s;
}

// Bytes read and written a second by a kernel that adds one array to another.
double memory_rate(KernelSet& kernels) {
  Arena arena(2 * static_cast<size_t>(kCopyBytes));
  auto* sum = reinterpret_cast<float*>(arena.bytes().data());
  auto* term = sum + kCopyBytes / 4;
  std::vector<double> seconds;
  for (int i = 0; i < kCopies; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    kernels.add(ref(sum), ref(static_cast<const float*>(term)), kCopyBytes / 4);
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return 3 * static_cast<double>(kCopyBytes) / median(seconds);
}

double matmul_rate(KernelSet& kernels, const Subject& s) {
  const ModelConfig& m = s.model;
  const int64_t tokens = s.config.training.micro_batch_size * s.config.data.sequence_length;
  const std::vector<GemmShape> shapes = {{tokens, m.ffn_hidden_size * (m.gated_mlp() ? 2 : 1), m.hidden_size},
                                         {tokens, m.hidden_size, m.ffn_hidden_size}};
  return measure_gemm_rate(kernels, s.config.precision.compute, shapes);
}

double mean_over_ranks(Communicator& world, double value) {
  sum_over_ranks(world, std::span(&value, 1));
  return value / world.size();
}

void add_layers(MachineProfile& profile, const LayerProfile& fresh) {
  for (const MeasuredLayer& m : fresh.layers) {
    const auto same = [&](const MeasuredLayer& other) { return other.shape == m.shape; };
    auto& all = profile.layers.layers;
    if (std::none_of(all.begin(), all.end(), same)) all.push_back(m);
  }
}

void add_links(MachineProfile& profile, Communicator& world, const std::vector<Subject>& subjects) {
  if (world.size() == 1) return;
  int64_t message = 0, block = 0;
  for (const MeasuredLayer& m : profile.layers.layers) {
    message = std::max(message, m.shape.activation_bytes);
    if (m.shape.layer == "block") block = std::max(block, 4 * m.shape.parameters);
  }
  const Subject& s = subjects.front();
  const auto kernels = make_host_kernels(static_cast<int>(s.config.device.threads));
  const auto measure = [&](Communicator& group) -> std::optional<LinkProfile> {
    if (group.size() == 1) return std::nullopt;
    return measure_links(group, *kernels, s.config.precision.compute, message,
                         std::clamp(block, kLeastSum, kLongestSum), s.config.parallel.grad_sync);
  };
  const auto nodes = world.nodes();
  const auto me = static_cast<size_t>(world.rank());
  const auto place = std::count(nodes.begin(), nodes.begin() + world.rank(), nodes[me]);
  profile.within_node = measure(*world.split(nodes[me], world.rank()));
  profile.across_nodes = measure(*world.split(static_cast<int>(place), world.rank()));
}

MachineProfile measure(const std::vector<Subject>& subjects, const MpiEnvironment& mpi, Communicator& world,
                       int steps, const std::vector<int>& cores) {
  MachineProfile profile;
  profile.ranks_per_node = mpi.local_size();
  profile.node_memory_bytes = sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
  profile.memory_bytes = profile.node_memory_bytes / mpi.local_size();
  profile.collective_algorithm = name_of(subjects.front().config.parallel.grad_sync);
  std::vector<double> overheads;
  for (const Subject& s : subjects) {
    const auto kernels = make_host_kernels(static_cast<int>(s.config.device.threads));
    double& rate = profile.matmul_flops_per_second[name_of(s.config.precision.compute)];
    world.barrier();
    if (rate == 0) {
      rate = mean_over_ranks(world, matmul_rate(*kernels, s));
      world.barrier();
      profile.memory_bytes_per_second = mean_over_ranks(world, memory_rate(*kernels));
    }
    const LayerProfile layers = measure_layers(s.config, s.model, world, steps, profile.memory_bytes);
    overheads.push_back(layers.task_overhead_seconds);
    add_layers(profile, layers);
  }
  profile.layers.task_overhead_seconds = median(overheads);
  add_links(profile, world, subjects);
  profile.source = fmt::format(
      "measured by trainer profile: {} rank{} at once, {} on a machine, {} thread{} each on {} core{}, "
      "kernels {}",
      mpi.size(), mpi.size() == 1 ? "" : "s", mpi.local_size(), subjects.front().config.device.threads,
      subjects.front().config.device.threads == 1 ? "" : "s", cores.size(), cores.size() == 1 ? "" : "s",
      make_host_kernels(1)->name());
  return profile;
}

int profile(const MpiEnvironment& mpi, std::span<const std::string> words) {
  const auto world = mpi.world();
  configure_logging(mpi.rank(), mpi.size());
  std::vector<Subject> subjects;
  std::string out;
  int steps = 0;
  const auto cores = cores_of_local_rank(allowed_cores(), mpi.local_rank(), mpi.local_size());
  bind_to_cores(cores);
  together(*world, [&] {
    const ConfigArguments arguments = read_config_arguments(words, {"--out", "--steps"}, {}, true);
    out = arguments.options.find("--out").value_or("this-machine.json");
    steps = static_cast<int>(arguments.options.integer("--steps", 5, 1));
    for (const std::string& path : arguments.configs)
      subjects.push_back(read_subject(path, arguments.overrides, static_cast<int>(cores.size())));
  });
  const Platform platform = to_platform(measure(subjects, mpi, *world, steps, cores));
  if (mpi.rank() == 0) {
    write_file_atomically(out, platform_to_json(platform).dump(2) + "\n");
    log_info("{}: {} layer shapes; written to {}", platform.source, platform.measured.size(), out);
  }
  return 0;
}

}  // namespace

Platform to_platform(const MachineProfile& profile) {
  Platform p;
  p.name = "this-machine";
  p.source = profile.source;
  p.devices_per_node = profile.ranks_per_node;
  p.memory_bytes = profile.memory_bytes;
  p.matmul_per_second = profile.matmul_flops_per_second;
  p.memory_bytes_per_second = profile.memory_bytes_per_second;
  p.task_overhead_seconds = profile.layers.task_overhead_seconds;
  p.host_memory_bytes = profile.node_memory_bytes;
  p.host_memory_bytes_per_second = profile.ranks_per_node * profile.memory_bytes_per_second;
  p.collective_algorithm = profile.collective_algorithm;
  p.measured = profile.layers.layers;
  double forward = 0, backward = 0, ideal = 0;
  for (const MeasuredLayer& m : p.measured) {
    if (m.shape.layer != "block") continue;
    ideal += m.shape.forward_flops / p.matmul_per_second.at(m.shape.precision);
    forward += m.forward_seconds;
    backward += m.backward_seconds;
  }
  constexpr double kLeast = 1e-6;
  if (forward > 0 && backward > 0) {
    p.forward_efficiency = p.recover_efficiency = std::clamp(ideal / forward, kLeast, 1.0);
    p.backward_efficiency = std::clamp(2 * ideal / backward, kLeast, 1.0);
  }
  const auto set = [&](Link Platform::LinkPair::*place, const char* where,
                       const std::optional<LinkProfile>& link) {
    if (!link) return;
    const auto write = [&](LinkUse use, const Link& measured, const std::string& source) {
      auto& pair = p.links[static_cast<size_t>(use)];
      pair.*place = measured;
      pair.source += fmt::format("{}{}: {}", pair.source.empty() ? "" : "; ", where, source);
    };
    write(LinkUse::kBoundary, {link->latency_seconds, link->bytes_per_second, "", 0},
          fmt::format(
              "a message from a rank that computes to one that waits; with nothing else going on, long ones "
              "alone {:.3g} bytes/s, from every rank to the next at once {:.3g} each",
              link->alone_bytes_per_second, link->together_bytes_per_second));
    write(LinkUse::kCollective,
          {link->sum_latency_seconds, link->sum_bytes_per_second, "", link->sum_core_share},
          "all-reduce of a block's gradient in training's chunks, alone and beside matrix products");
  };
  set(&Platform::LinkPair::within_node, "within a node", profile.within_node);
  set(&Platform::LinkPair::across_nodes, "across nodes", profile.across_nodes);
  return p;
}

int profile_command(std::span<const std::string> arguments) {
  return run_parallel_command({"profile", kProfileUsage}, arguments,
                              [&](const MpiEnvironment& mpi) { return profile(mpi, arguments); });
}

}  // namespace trainer
