// Backward of causal attention of one head on a simulated cluster, from the forward's saved probabilities, in
// two ways:
//  - resident: RATrain's algorithm 1. Queries outside, keys inside; GP and GS never leave a DSP, GK and GV
//  are summed
//    in GSM and written once, GQ is summed in AM;
//  - staged through DDR: GP and GS of each tile make a round trip through DDR, and so do the sums GK_j and
//  GV_j. The
//    transfers are pipelined: three tiles are under way, so that a round trip runs under other tiles'
//    products.
// Each DSP has a query tile of its own; K_j and V_j are broadcast, and all DSPs meet at each key tile.
#pragma once

#include <span>
#include <vector>

#include "dsp/timeline.h"

namespace trainer::dsp {

enum class Staging {
  kResident,
  kDdr,          // the DSPs' parts of GK_j and GV_j are summed on chip, the sums then make the round trip
  kDdrEachPart,  // each DSP's part makes the round trip by itself
};

struct AttentionProblem {
  int64_t sequence = 0;
  int64_t head_dim = 128;
};

// Elements: B_r queries of one DSP and B_c keys.
struct AttentionTile {
  int64_t queries = 0, keys = 0;

  bool operator==(const AttentionTile&) const = default;
};

// Row-major; rounded to fp16 on their way in. The scores are `scale` Q K^T, the output O = P V.
struct AttentionOperands {
  std::span<const float> q, k, v, out, grad_out;  // [sequence, head_dim]
  std::span<const float> probabilities;           // P [sequence, sequence], 0 above the diagonal
  float scale = 1;
};

struct AttentionResult {
  Count count;
  std::vector<float> grad_q, grad_k, grad_v;  // [sequence, head_dim]; empty without operands
};

// Walks the tiles and counts cycles; with `operands` it moves and multiplies values, too, and counts the
// same. Memories hold fp16, GK and GV in GSM included; a product's accumulators are fp32. Throws InputError
// for a tile that does not fit a memory (naming it, the bytes asked for and free) and for one whose DMA is
// not aligned.
AttentionResult run_attention_backward(const Machine& machine, const AttentionProblem& problem,
                                       const AttentionTile& tile, Staging staging,
                                       const AttentionOperands* operands = nullptr);

// True when all buffers of the tile find room in their memories and its DMA is aligned.
bool attention_tile_fits(const Machine& machine, const AttentionProblem& problem, const AttentionTile& tile,
                         Staging staging);

// The tile of fewest counted cycles among those that fit. Throws InputError when none does.
AttentionTile search_attention_tile(const Machine& machine, const AttentionProblem& problem, Staging staging);

}  // namespace trainer::dsp
