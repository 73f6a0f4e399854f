// What a machine is measured to do, and the platform that this makes.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "app/config.h"
#include "app/layer_profile.h"
#include "app/link_profile.h"
#include "comm/mpi/mpi_communicator.h"

namespace trainer {

// Every number is that of one rank among those that ran at once.
struct MachineProfile {
  std::string source;
  int ranks_per_node = 1;
  int64_t memory_bytes = 0, node_memory_bytes = 0;
  std::map<std::string, double> matmul_flops_per_second;  // by precision
  double memory_bytes_per_second = 0;                     // while all ranks of the node use the memory
  std::vector<MeasuredLayer> layers;
  std::vector<double> task_overhead_seconds;  // of each program; the median counts
  Pace pace;                                  // one program after the other
  std::string collective_algorithm = "direct";
  std::optional<LinkProfile> within_node, across_nodes;
};
// Layers of shapes that a profile has already stay as they are. Ranks of a pipeline wait for one another and
// do unlike work: their overhead and pace count only in a profile that has no layers yet.
void add_layers(MachineProfile& profile, const LayerProfile& fresh);
// Layers of shapes that were not measured are estimated with the efficiency that the measured blocks reach.
Platform to_platform(const MachineProfile& profile);

// Whose layers are measured.
struct ProfileSubject {
  Config config;
  ModelConfig model;
};
// `cores`: of this rank, for a config that leaves the number of threads to the machine. Throws InputError for
// a config whose layers are not measured.
ProfileSubject read_profile_subject(const std::string& path, const std::vector<std::string>& overrides,
                                    int cores);

// Measures, on all ranks of a job at the same time. All calls are collective.
class MachineProfiler {
 public:
  // Of the configs' precisions, the rates of matrix products and memory. `steps`: recorded ones of each
  // program.
  MachineProfiler(const MpiEnvironment& mpi, Communicator& world, const std::vector<ProfileSubject>& subjects,
                  int cores, int steps);

  // Rates and links, without layers. `subjects` as given to the constructor.
  MachineProfile measure_links() const;
  // Adds a subject's layers to a profile: of programs of so many stages.
  void measure_layers(const ProfileSubject& subject, int stages, MachineProfile& profile) const;

 private:
  Communicator& world_;
  const std::vector<ProfileSubject>& subjects_;
  int cores_, steps_;
  MachineProfile rates_;
};

}  // namespace trainer
