#include "schedule/problem.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/hash.h"

namespace trainer {

std::vector<int> Problem::ranks_to_build() const {
  if (!ranks.empty()) return ranks;
  std::vector<int> all(static_cast<size_t>(world_size()));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

uint64_t Problem::hash() const {
  Hasher h;
  h.add(stages)
      .add(replicas)
      .add(micro_batches)
      .add(virtual_ranks)
      .add(activation)
      .add(forward_only)
      .add(element_bytes);
  for (int layer : first_layer) h.add(layer);
  for (const auto& pass : passes) h.add(pass);
  for (const auto& layer : layers) {
    h.add(layer.name).add(layer.parameters).add(layer.shared_block).add(layer.shared_parameters);
    h.add(layer.output_bytes).add(layer.gradient_bytes).add(layer.temporary_bytes);
    for (const auto& tensor : layer.saved) h.add(tensor.name).add(tensor.bytes).add(tensor.reuse);
  }
  return h.value();
}

std::vector<int> split_layers(int blocks, int stages, const std::vector<int64_t>& stage_layers) {
  std::vector<int64_t> counts(stage_layers);
  if (counts.empty()) {
    if (blocks < stages)
      input_error("parallel.pipeline_parallel_size: {} layers cannot fill {} stages; use at most {} stages",
                  blocks, stages, blocks);
    for (int s = 0; s < stages; ++s) counts.push_back(blocks / stages + (s < blocks % stages ? 1 : 0));
  }
  if (static_cast<int>(counts.size()) != stages)
    input_error("parallel.stage_layers names {} stages, parallel.pipeline_parallel_size is {}", counts.size(),
                stages);
  std::vector<int> first{0};
  int64_t next = 1;  // layer 0 is the embedding
  for (int64_t count : counts) {
    if (count < 1)
      input_error("parallel.stage_layers: every stage needs at least one layer, found {}", count);
    next += count;
    first.push_back(static_cast<int>(std::min<int64_t>(next, blocks + 1)));
  }
  if (next != blocks + 1)
    input_error("parallel.stage_layers adds up to {} layers, the model has {}", next - 1, blocks);
  first.back() = blocks + 2;
  return first;
}

int warm_up_micro_batches(int stages, int stage, int micro_batches) {
  return std::min(stages - stage - 1, micro_batches);
}

}  // namespace trainer
