#include "schedule/shards.h"

#include <algorithm>
#include <cstdlib>

namespace trainer {

std::vector<ShardRange> shard_ranges(const LayerCatalogue& layer, int replicas) {
  std::vector<int64_t> cuts;
  for (const NormBlock& block : norm_blocks(layer, {0, layer.parameters})) cuts.push_back(block.part.offset);
  cuts.push_back(layer.parameters);
  std::vector<ShardRange> ranges;
  int64_t begin = 0;
  for (int r = 0; r < replicas; ++r) {
    int64_t end = layer.parameters;
    if (r + 1 < replicas) {
      const int64_t ideal = layer.parameters * (r + 1) / replicas;
      const auto above = std::lower_bound(cuts.begin(), cuts.end(), ideal);
      end = above == cuts.end() ? layer.parameters : *above;
      if (above != cuts.begin() && above != cuts.end() && ideal - *std::prev(above) < *above - ideal)
        end = *std::prev(above);
      end = std::max(end, begin);
    }
    ranges.push_back({begin, end - begin});
    begin = end;
  }
  return ranges;
}

std::vector<NormBlock> norm_blocks(const LayerCatalogue& layer, ShardRange range) {
  std::vector<NormBlock> blocks;
  for (size_t t = 0; t < layer.tensors.size(); ++t) {
    const ParameterExtent& tensor = layer.tensors[t];
    for (int64_t at = 0; at < tensor.count; at += kNormBlock) {
      const int64_t offset = tensor.offset + at;
      if (offset < range.begin || offset >= range.end()) continue;
      blocks.push_back({t, {offset, std::min(kNormBlock, tensor.count - at)}});
    }
  }
  return blocks;
}

}  // namespace trainer
