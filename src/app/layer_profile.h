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
  double task_overhead_seconds = 0;  // between the end of a task and the begin of the next of its pass
  Pace pace;                         // of all ranks, in the recorded steps
};

// Blocks of the model in a recorded program of `stages`, as many in each: at most kProfiledBlocks, and no
// more than fit `memory_bytes` of each rank, but one a stage at least.
inline constexpr int kProfiledBlocks = 8;
int64_t profiled_blocks(const Config& config, const ModelConfig& model, int64_t memory_bytes, int stages);

// Stages of the pipelines that so many ranks measure in: as many as divide them and have a block each, at
// most kProfiledBlocks. 1: none.
int profiled_stages(int ranks, const ModelConfig& model);

// A program for a config's layers: no passes, no limit of memory; three micro-batches of one stage, or twice
// as many as it has stages.
Config profiled_program(const Config& config, int stages);

// The layers of a config's model for its micro-batches, precision and threads, in training steps with the
// kernels, the memory and the dispatcher of a training run: of programs of so many stages (profiled_stages,
// or 1), each run by as many ranks in a row of `world`, all at the same time. `memory_bytes`: a rank's.
// Medians over `steps` steps after the first, then means over the ranks. Collective.
LayerProfile measure_layers(const Config& config, const ModelConfig& model, Communicator& world, int stages,
                            int steps, int64_t memory_bytes);

// Of what program recorded tasks are.
struct RecordedProgram {
  std::vector<LayerCatalogue> layers;
  int64_t element_bytes = 0;
  bool pipelined = false;

  LayerShape shape(int layer) const {
    return shape_of(layers[static_cast<size_t>(layer)], element_bytes, pipelined);
  }
};

// Medians of recorded tasks, for every shape of the program's layers, those without any as well. `events` of
// one rank, of steps whose first micro-batch is 0.
LayerProfile summarise_layers(const RecordedProgram& program, std::vector<TimelineEvent> events);

// Means over the ranks that have a length: one that was slow may have none of what stands at the end of a
// step, and one stage has none of another's layers. All have the same shapes. Collective.
void average_over_ranks(LayerProfile& profile, Communicator& world);

// How long consecutive pieces of one rank's work, each kPieceSeconds of what the profile has, took against
// that.
inline constexpr double kPieceSeconds = 0.01;
std::vector<double> pieces_of_work(const LayerProfile& profile, const RecordedProgram& program,
                                   std::vector<TimelineEvent> events);

// The share of its matmul rate that a platform's measured blocks reach, for layers that were not measured.
void set_efficiencies(Platform& platform);

}  // namespace trainer
