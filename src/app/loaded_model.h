// A whole model in the memory of this process, for generating and evaluating.
#pragma once

#include <vector>

#include "checkpoint/model_source.h"
#include "device/arena.h"
#include "model/layer.h"

namespace trainer {

struct LoadedModel {
  Model model;
  Arena memory;
  std::vector<Ref> weights;  // each layer's flat block, in `memory`
};

// Checks the source, then reads every layer. `positions`: the longest sequence that will be used, 0: the
// model's own. Throws InputError.
LoadedModel load_model(const ModelSource& source, KernelSet& kernels, DType dtype, int64_t positions = 0);

}  // namespace trainer
