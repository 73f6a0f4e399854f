// What a layer holds and costs, as pure data: the one source for memory placement, recompute and offload decisions,
// planners and the simulator. Filled in by the model for one micro-batch shape and precision.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trainer {

// Who reads a saved tensor again.
enum class ReuseClass : uint8_t {
  kBackward,        // only this micro-batch's backward
  kLaterSegment,    // later sequence segments' forward too (keys, values)
};

struct SavedTensor {
  std::string name;
  int64_t bytes = 0;
  double recompute_flops = 0;
  ReuseClass reuse = ReuseClass::kBackward;
};

// Elements of one block of a parameter whose squares are summed by themselves, for the norm of the gradients. Shards
// are cut between such blocks, so that their sums do not depend on who holds what.
inline constexpr int64_t kNormBlock = 1 << 16;

// Where one parameter tensor lies in its layer's block, in elements.
struct ParameterExtent {
  int64_t offset = 0, count = 0;
};

// What one rank sends to the others of its tensor-parallel group within one call of a layer.
struct TensorExchange {
  int count = 0;  // exchanges, one after the other, each of which all ranks of the group wait for
  int64_t bytes = 0;
  TensorExchange& operator+=(const TensorExchange& other) {
    count += other.count;
    bytes += other.bytes;
    return *this;
  }
};

// One contiguous allocation of a layer's own parameters. A tied head has the embedding's block as `shared_block`.
struct LayerCatalogue {
  std::string name;                    // "embedding", "block 3", "head"
  int64_t parameters = 0;              // elements owned by this layer, padding included
  std::vector<ParameterExtent> tensors;  // ascending
  int shared_block = -1;               // layer whose parameters this one uses too; -1: none
  int64_t shared_parameters = 0;       // elements of that layer's block
  int64_t output_bytes = 0;            // activation handed to the next layer (0: the head)
  int64_t gradient_bytes = 0;          // gradient handed to the previous layer (0: the embedding)
  std::vector<SavedTensor> saved;      // written by forward or recover, read by backward; excludes the layer's input
  int64_t temporary_bytes = 0;         // scratch of one forward or backward call
  double forward_flops = 0, backward_flops = 0;   // model FLOPs: causal attention halved, recompute not counted

  TensorExchange forward_exchange, recover_exchange, backward_exchange;  // none without tensor parallelism

  int64_t saved_bytes() const {
    int64_t sum = 0;
    for (const auto& tensor : saved) sum += tensor.bytes;
    return sum;
  }
};

}  // namespace trainer
