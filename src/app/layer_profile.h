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
};

// The layers of a config's model for its micro-batches, precision and threads. `config` is resolved for one
// rank with the whole model. Each rank of `world` runs training steps of a program of one stage by itself, at
// the same time as the others, with at most `kProfiledBlocks` blocks: the kernels, the memory and the
// dispatcher of a training run. Medians over `steps` steps after the first, then means over the ranks.
// Collective.
inline constexpr int kProfiledBlocks = 4;
LayerProfile measure_layers(const Config& config, const ModelConfig& model, Communicator& world, int steps);

// Medians of recorded tasks. `layers` are those of the recorded program; `events` of one rank, of steps whose
// first micro-batch is 0.
LayerProfile summarise_layers(const std::vector<LayerCatalogue>& layers, int64_t element_bytes,
                              std::vector<TimelineEvent> events);

}  // namespace trainer
