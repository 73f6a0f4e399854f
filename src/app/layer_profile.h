// What layers cost on this machine.
#pragma once

#include <vector>

#include "app/config.h"
#include "comm/communicator.h"
#include "schedule/timeline.h"
#include "sim/platform.h"

namespace trainer {

struct LayerProfile {
  std::vector<MeasuredLayer> layers;
  double task_overhead_seconds = 0;  // between the end of a task and the begin of the next on its lane
  Pace pace;                         // of all ranks, in the recorded steps
};

// Blocks of the model in a recorded program: at most kProfiledBlocks, and no more than fit `memory_bytes`.
inline constexpr int kProfiledBlocks = 8;
int64_t profiled_blocks(const Config& config, const ModelConfig& model, int64_t memory_bytes);

// A program of one stage for a config's layers: three micro-batches, no passes, no limit of memory.
Config profiled_program(const Config& config);

// The layers of a config's model for its micro-batches, precision and threads. Each rank of `world` runs
// training steps of a program of one stage by itself, at the same time as the others: the kernels, the memory
// and the dispatcher of a training run. `memory_bytes`: a rank's. Medians over `steps` steps after the first,
// then means over the ranks. Collective.
LayerProfile measure_layers(const Config& config, const ModelConfig& model, Communicator& world, int steps,
                            int64_t memory_bytes);

// Medians of recorded tasks, for every shape of `layers`, those without any as well. `layers` are those of
// the recorded program; `events` of one rank, of steps whose first micro-batch is 0.
LayerProfile summarise_layers(const std::vector<LayerCatalogue>& layers, int64_t element_bytes,
                              std::vector<TimelineEvent> events);

// Means over the ranks that have a length; one that was slow may have none of what stands at the end of a
// step. All have the same shapes. Collective.
void average_over_ranks(LayerProfile& profile, Communicator& world);

// How long consecutive pieces of one rank's work, each kPieceSeconds of what the profile has, took against
// that.
inline constexpr double kPieceSeconds = 0.01;
std::vector<double> pieces_of_work(const LayerProfile& profile, const std::vector<LayerCatalogue>& layers,
                                   int64_t element_bytes, std::vector<TimelineEvent> events);

// The share of its matmul rate that a platform's measured blocks reach, for layers that were not measured.
void set_efficiencies(Platform& platform);

}  // namespace trainer
