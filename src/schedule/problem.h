// What a front end and its passes need to know to write the program: the model as catalogues, the parallel
// sizes, the micro-batches. Pure data; equal on all ranks but for `ranks`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/catalogue.h"

namespace trainer {

// What forward keeps of a block's saved tensors; the rest is recovered from the block's input.
enum class ActivationPolicy : uint8_t {
  kFullSave,     // all of them
  kCheckpoint,   // none
  kSelective,    // those that cost at least the block's average to recover, for their bytes
  kKeepWhatFits  // as many as the memory budget allows, those that cost most for their bytes first
};

struct Problem {
  int stages = 1;                      // P
  int replicas = 1;                    // D
  int tensor_ranks = 1;                // T
  int micro_batches = 1;               // M, of one rank in one step
  int virtual_ranks = 1;               // of one rank (reproducible_group / D); divides micro_batches
  std::vector<LayerCatalogue> layers;  // embedding, blocks, head
  std::vector<int> first_layer;        // of each stage; [stages] = layers.size()
  // By layer: bit i says that forward keeps saved tensor i for backward. Empty: everything.
  std::vector<uint64_t> kept;
  // Saved tensors of so many blocks may be recovered ahead of their backwards; 0: of two micro-batches.
  int recovery_buffers = 0;
  int zero_stage = 0;  // 0: replicated state; 1: optimizer state in shards; 2: and gradients; 3: and weights
  // Gradients are summed over the replicas after each micro-batch, and only shards accumulate (zero_stage 2,
  // 3); in a reproducible group, after each virtual rank.
  bool shard_gradients = false;
  bool reproducible_group = false;  // sums are those of all replicas' virtual ranks by one fixed tree
  int64_t gradient_bytes = 4;       // of an element of gradients; programs that run have 4
  // Clipping, or skipping of steps that are not finite: no update before the norm of all gradients is known.
  bool updates_wait_for_norm = true;
  bool forward_only = false;         // evaluation: forwards that keep nothing
  int64_t element_bytes = 4;         // of working weights; 2: beside an fp32 master copy
  int64_t workspace_bytes = 0;       // kernels' own scratch, one per compute lane
  int64_t tensor_staging_bytes = 0;  // scratch of the exchanges within a tensor-parallel group
  std::vector<std::string> passes;
  std::vector<int> ranks;  // to build tasks for; empty: all

  int world_size() const { return stages * replicas * tensor_ranks; }
  // Megatron's order: tensor-parallel ranks are neighbours, then data-parallel ones; stages are far apart.
  int rank_of(int stage, int replica, int tensor = 0) const {
    return (stage * replicas + replica) * tensor_ranks + tensor;
  }
  int stage_of(int rank) const { return rank / (replicas * tensor_ranks); }
  int replica_of(int rank) const { return rank / tensor_ranks % replicas; }
  int tensor_of(int rank) const { return rank % tensor_ranks; }
  int layer_count() const { return static_cast<int>(layers.size()); }
  bool tied() const { return layers.back().shared_block == 0; }
  bool keeps(int layer, size_t saved) const {
    return kept.empty() || (kept[static_cast<size_t>(layer)] >> saved & 1);
  }
  // The ZeRO stage where there is something to share.
  int sharding() const { return replicas > 1 ? zero_stage : 0; }
  bool accumulates_shards() const { return shard_gradients && sharding() >= 2; }
  // What a rank sums over the replicas one after the other where shards accumulate; divides micro_batches.
  int parts() const { return reproducible_group ? virtual_ranks : micro_batches; }
  // Number among all virtual ranks of the `i`-th that `replica` runs. Where sums over the replicas come
  // before those over what a rank runs, replicas run neighbours at a time, so that the tree over all is the
  // same.
  int virtual_rank_of(int replica, int i) const {
    return accumulates_shards() ? i * replicas + replica : replica * virtual_ranks + i;
  }
  std::vector<int> ranks_to_build() const;
  // Hash of everything that must be the same on all ranks.
  uint64_t hash() const;
};

// Transformer layers of each of `stages` stages: as even as can be, the larger ones first (30 over 4: 8, 8,
// 7, 7). Throws InputError when there are fewer layers than stages.
std::vector<int64_t> even_stage_layers(int64_t layers, int64_t stages);

// Problem::first_layer for these transformer layers per stage; embedding and head ride with the first and
// last stage. Throws InputError for a stage without layers.
std::vector<int> first_layers(const std::vector<int64_t>& stage_layers);

// Number of warm-up forwards of a stage in non-interleaved 1F1B.
int warm_up_micro_batches(int stages, int stage, int micro_batches);

}  // namespace trainer
