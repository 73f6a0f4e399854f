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
      .add(tensor_ranks)
      .add(micro_batches)
      .add(virtual_ranks)
      .add(recovery_buffers)
      .add(zero_stage)
      .add(shard_gradients)
      .add(reproducible_group)
      .add(gradient_bytes)
      .add(updates_wait_for_norm)
      .add(forward_only)
      .add(element_bytes);
  for (int layer : first_layer) h.add(layer);
  for (uint64_t mask : kept) h.add(mask);
  for (const auto& pass : passes) h.add(pass);
  for (const auto& layer : layers) {
    h.add(layer.name).add(layer.parameters).add(layer.shared_block).add(layer.shared_parameters);
    h.add(layer.output_bytes).add(layer.gradient_bytes).add(layer.temporary_bytes);
    for (const auto& tensor : layer.saved) h.add(tensor.name).add(tensor.bytes).add(tensor.reuse);
  }
  return h.value();
}

std::vector<int64_t> even_stage_layers(int64_t layers, int64_t stages) {
  if (layers < stages)
    input_error(
        "key 'parallel.pipeline_parallel_size': {} stages, but the model has {} transformer layers; every "
        "stage needs "
        "one, so use at most {} stages",
        stages, layers, layers);
  std::vector<int64_t> counts(static_cast<size_t>(stages), layers / stages);
  for (int64_t i = 0; i < layers % stages; ++i) ++counts[static_cast<size_t>(i)];
  return counts;
}

std::vector<int> first_layers(const std::vector<int64_t>& stage_layers) {
  std::vector<int> first{0};
  int64_t next = 1;  // layer 0 is the embedding
  for (int64_t count : stage_layers) {
    if (count < 1)
      input_error("key 'parallel.stage_layers': every stage needs at least one layer, found {}", count);
    next += count;
    first.push_back(static_cast<int>(next));
  }
  ++first.back();  // the head
  return first;
}

int warm_up_micro_batches(int stages, int stage, int micro_batches) {
  return std::min(stages - stage - 1, micro_batches);
}

}  // namespace trainer
