#include "app/machine_profile.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>

#include "app/agreement.h"
#include "app/kernels.h"
#include "app/training_data.h"
#include "base/error.h"
#include "base/statistics.h"
#include "comm/collectives.h"
#include "comm/number_nodes.h"
#include "device/arena.h"
#include "model/layer.h"
#include "ops/memory_rate.h"

namespace trainer {
namespace {

constexpr size_t kMemoryBytes = size_t{128} << 20;  // that memory's rate is measured with
constexpr int64_t kLeastSum = int64_t{1} << 20, kLongestSum = int64_t{8} << 20;  // bytes

double matmul_rate(KernelSet& kernels, const ProfileSubject& s) {
  const int64_t tokens = s.config.training.micro_batch_size * s.config.data.sequence_length;
  return measure_gemm_rate(kernels, s.config.precision.compute, feed_forward_products(s.model, tokens));
}

double mean_over_ranks(Communicator& world, double value) {
  sum_over_ranks(world, std::span(&value, 1));
  return value / world.size();
}

// The longest message between stages and the shortest sum that is worth timing, in bytes.
struct TransferSizes {
  int64_t message = 0, sum = 0;
};

TransferSizes transfer_sizes(const std::vector<ProfileSubject>& subjects) {
  TransferSizes sizes;
  for (const ProfileSubject& s : subjects) {
    const LayerCatalogue block = Model(s.model, s.config.data.sequence_length)
                                     .layer(1)
                                     .catalogue(s.config.training.micro_batch_size,
                                                s.config.data.sequence_length, s.config.precision.compute);
    sizes.message = std::max(sizes.message, block.output_bytes);
    sizes.sum = std::max(sizes.sum, 4 * block.parameters);
  }
  sizes.sum = std::clamp(sizes.sum, kLeastSum, kLongestSum);
  return sizes;
}

}  // namespace

ProfileSubject read_profile_subject(const std::string& path, const std::vector<std::string>& overrides,
                                    int cores) {
  ProfileSubject s;
  s.config = read_config(path, overrides);
  if (s.config.parallel.tensor_parallel_size > 1)
    input_error("{}: 'parallel.tensor_parallel_size' is {}; layers that are cut over ranks are not measured",
                path, s.config.parallel.tensor_parallel_size);
  if (s.config.device.kind == DeviceKind::kCuda)
    input_error("{}: GPUs are not measured; set key 'device.kind' to \"host\"", path);
  if (s.config.device.threads == 0) s.config.device.threads = cores;
  int64_t vocabulary = 0;
  if (s.config.model.vocabulary_size == 0 && !s.config.data.tokenizer.empty())
    vocabulary = load_tokenizer(s.config.data.tokenizer)->vocabulary_size();
  s.model = make_model_config(s.config, vocabulary);
  return s;
}

Platform to_platform(const MachineProfile& profile) {
  Platform p;
  p.name = "this-machine";
  p.source = profile.source;
  p.devices_per_node = profile.ranks_per_node;
  p.memory_bytes = profile.memory_bytes;
  p.matmul_per_second = profile.matmul_flops_per_second;
  p.memory_bytes_per_second = profile.memory_bytes_per_second;
  if (!profile.task_overhead_seconds.empty()) p.task_overhead_seconds = median(profile.task_overhead_seconds);
  p.host_memory_bytes = profile.node_memory_bytes;
  p.host_memory_bytes_per_second = profile.ranks_per_node * profile.memory_bytes_per_second;
  p.collective_algorithm = profile.collective_algorithm;
  p.measured = profile.layers;
  p.pace = profile.pace;
  set_efficiencies(p);
  const auto set = [&](Link Platform::LinkPair::*place, const char* where,
                       const std::optional<LinkProfile>& link) {
    if (!link) return;
    const auto write = [&](LinkUse use, const Link& measured, const std::string& source) {
      auto& pair = p.links[static_cast<size_t>(use)];
      pair.*place = measured;
      pair.source += fmt::format("{}{}: {}", pair.source.empty() ? "" : "; ", where, source);
    };
    write(
        LinkUse::kBoundary,
        {.latency_seconds = link->latency_seconds,
         .bytes_per_second = link->bytes_per_second,
         .group = "",
         .core_wait_seconds = link->core_wait_seconds},
        fmt::format("a message to a rank that waits, from one that computes nothing meanwhile or does; long "
                    "ones from every rank to the next at once {:.3g} bytes/s each",
                    link->together_bytes_per_second));
    write(LinkUse::kCollective,
          {.latency_seconds = link->sum_latency_seconds,
           .bytes_per_second = link->sum_bytes_per_second,
           .group = "",
           .core_share = link->sum_cores.share,
           .core_weight = link->sum_cores.weight},
          "all-reduce of a block's gradient in training's chunks, alone and beside matrix products");
  };
  set(&Platform::LinkPair::within_node, "within a node", profile.within_node);
  set(&Platform::LinkPair::across_nodes, "across nodes", profile.across_nodes);
  return p;
}

MachineProfiler::MachineProfiler(const MpiEnvironment& mpi, Communicator& world,
                                 const std::vector<ProfileSubject>& subjects, int cores, int steps)
    : world_(world), subjects_(subjects), cores_(cores), steps_(steps) {
  const Config& first = subjects.front().config;
  const auto plural = [](int64_t count) { return count == 1 ? "" : "s"; };
  rates_.source = fmt::format(
      "measured by trainer profile: {} rank{} at once, {} on a machine, {} thread{} each on {} core{}, "
      "kernels {}",
      mpi.size(), plural(mpi.size()), mpi.local_size(), first.device.threads, plural(first.device.threads),
      cores, plural(cores), make_kernels(first.device)->name());
  rates_.ranks_per_node = mpi.local_size();
  rates_.node_memory_bytes = sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
  rates_.memory_bytes = rates_.node_memory_bytes / mpi.local_size();
  rates_.collective_algorithm = name_of(first.parallel.grad_sync);
  for (const ProfileSubject& s : subjects) {
    double& rate = rates_.matmul_flops_per_second[name_of(s.config.precision.compute)];
    if (rate > 0) continue;
    const auto kernels = make_kernels(s.config.device);
    world_.barrier();
    rate = mean_over_ranks(world_, matmul_rate(*kernels, s));
    world_.barrier();
    rates_.memory_bytes_per_second =
        mean_over_ranks(world_, measure_memory_rate(*kernels, Arena(kMemoryBytes).bytes()));
  }
}

MachineProfile MachineProfiler::measure_links() const {
  MachineProfile profile = rates_;
  if (world_.size() == 1) return profile;
  const TransferSizes sizes = transfer_sizes(subjects_);
  const ProfileSubject& s = subjects_.front();
  const auto kernels = make_kernels(s.config.device);
  const int busy_cores = s.config.device.threads >= cores_ ? cores_ : 0;
  const auto measure = [&](Communicator& group) -> std::optional<LinkProfile> {
    if (group.size() == 1) return std::nullopt;
    return trainer::measure_links(group, *kernels, busy_cores, s.config.precision.compute, sizes.message,
                                  sizes.sum, s.config.parallel.grad_sync);
  };
  const auto nodes = world_.nodes();
  const int rank = world_.rank();
  profile.within_node = measure(*world_.split(nodes[static_cast<size_t>(rank)], rank));
  profile.across_nodes = measure(*world_.split(place_on_node(nodes, rank), rank));
  return profile;
}

void MachineProfiler::measure_layers(const ProfileSubject& subject, int stages,
                                     MachineProfile& profile) const {
  world_.barrier();
  add_layers(profile, trainer::measure_layers(subject.config, subject.model, world_, stages, steps_,
                                              rates_.memory_bytes));
}

void add_layers(MachineProfile& profile, const LayerProfile& fresh) {
  const bool pipelined = std::any_of(fresh.layers.begin(), fresh.layers.end(),
                                     [](const MeasuredLayer& m) { return m.shape.pipelined; });
  if (!pipelined || profile.layers.empty()) {
    profile.task_overhead_seconds.push_back(fresh.task_overhead_seconds);
    if (!fresh.pace.ranks.empty()) {
      profile.pace.piece_seconds = fresh.pace.piece_seconds;
      profile.pace.ranks.resize(fresh.pace.ranks.size());
    }
    for (size_t r = 0; r < fresh.pace.ranks.size(); ++r)
      profile.pace.ranks[r].insert(profile.pace.ranks[r].end(), fresh.pace.ranks[r].begin(),
                                   fresh.pace.ranks[r].end());
  }
  for (const MeasuredLayer& m : fresh.layers) {
    const auto same = [&](const MeasuredLayer& other) { return other.shape == m.shape; };
    if (m.forward_seconds < 0 && m.first_forward_seconds < 0) continue;  // nothing was recorded of it
    if (std::none_of(profile.layers.begin(), profile.layers.end(), same)) profile.layers.push_back(m);
  }
}

}  // namespace trainer
