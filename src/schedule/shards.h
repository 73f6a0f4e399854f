// Which part of a layer's parameters a data-parallel replica looks after: it updates that part under ZeRO,
// and sums its squares under every stage of it.
#pragma once

#include <cstdint>
#include <vector>

#include "base/catalogue.h"

namespace trainer {

// Elements [begin, begin + count) of a layer's block.
struct ShardRange {
  int64_t begin = 0, count = 0;
  int64_t end() const { return begin + count; }
};

// One range per replica: they follow each other, cover the block, and are about equally long. They are cut
// where a parameter or one of its norm blocks begins.
std::vector<ShardRange> shard_ranges(const LayerCatalogue& layer, int replicas);
ShardRange shard_range(const LayerCatalogue& layer, int replicas, int replica);

// A norm block of a layer that lies in a range.
struct NormBlock {
  size_t tensor = 0;     // index in LayerCatalogue::tensors
  ParameterExtent part;  // of the layer's block
};
// In the order of the layer's block.
std::vector<NormBlock> norm_blocks(const LayerCatalogue& layer, ShardRange range);
// How many these are.
int64_t norm_block_count(const LayerCatalogue& layer, ShardRange range);

}  // namespace trainer
