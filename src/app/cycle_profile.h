// What layers cost on the simulated cluster, in counted cycles.
#pragma once

#include <vector>

#include "app/layer_profile.h"

namespace trainer {

// The layers of a config's model for its micro-batches: each call that training makes of them is made on
// kernels that count and compute nothing, so layers may be of any size; no memory is taken for them. Throws
// InputError for what the cluster cannot do.
LayerProfile count_layers(const Config& config, const ModelConfig& model);

// The platform mt3000 (configs/platforms) with these layers and the rates of the simulated cluster. Its name
// and sources say that it is simulated.
Platform simulated_platform(std::vector<MeasuredLayer> layers);

}  // namespace trainer
