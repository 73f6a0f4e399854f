#include "schedule/shards.h"

#include <algorithm>

namespace trainer {
namespace {

// Number of a tensor's norm blocks that begin before an element of the layer's block.
int64_t blocks_before(const ParameterExtent& tensor, int64_t element) {
  const int64_t reach = std::min(element - tensor.offset, tensor.count);
  return reach <= 0 ? 0 : (reach + kNormBlock - 1) / kNormBlock;
}

// Where a tensor or one of its norm blocks begins, or the layer ends, nearest to `ideal`; of two, the later.
int64_t nearest_cut(const LayerCatalogue& layer, int64_t ideal) {
  int64_t below = -1, above = layer.parameters;
  for (const ParameterExtent& tensor : layer.tensors) {
    const int64_t before = blocks_before(tensor, ideal);
    if (before > 0) below = std::max(below, tensor.offset + (before - 1) * kNormBlock);
    if (before * kNormBlock < tensor.count) above = std::min(above, tensor.offset + before * kNormBlock);
  }
  return below >= 0 && ideal - below < above - ideal ? below : above;
}

}  // namespace

ShardRange shard_range(const LayerCatalogue& layer, int replicas, int replica) {
  const auto cut = [&](int r) {
    if (r == 0) return int64_t{0};
    return r == replicas ? layer.parameters : nearest_cut(layer, layer.parameters * r / replicas);
  };
  const int64_t begin = cut(replica);
  return {begin, cut(replica + 1) - begin};
}

std::vector<ShardRange> shard_ranges(const LayerCatalogue& layer, int replicas) {
  std::vector<ShardRange> ranges;
  for (int r = 0; r < replicas; ++r) ranges.push_back(shard_range(layer, replicas, r));
  return ranges;
}

std::vector<NormBlock> norm_blocks(const LayerCatalogue& layer, ShardRange range) {
  std::vector<NormBlock> blocks;
  for (size_t t = 0; t < layer.tensors.size(); ++t) {
    const ParameterExtent& tensor = layer.tensors[t];
    for (int64_t k = blocks_before(tensor, range.begin); k < blocks_before(tensor, range.end()); ++k) {
      const int64_t at = k * kNormBlock;
      blocks.push_back({t, {tensor.offset + at, std::min(kNormBlock, tensor.count - at)}});
    }
  }
  return blocks;
}

int64_t norm_block_count(const LayerCatalogue& layer, ShardRange range) {
  int64_t count = 0;
  for (const ParameterExtent& tensor : layer.tensors)
    count += blocks_before(tensor, range.end()) - blocks_before(tensor, range.begin);
  return count;
}

}  // namespace trainer
