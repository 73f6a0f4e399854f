// Cycles of what is no tile program: a simple model of operations whose work is bytes. Assumed, not
// published.
#pragma once

#include "dsp/attention.h"
#include "dsp/timeline.h"

namespace trainer::dsp {

// An element-wise pass over [rows, columns], each row cut into vectors of the machine's lanes, which the DSPs share
// evenly, streamed through AM in two buffers: after the first DMA has started, it takes the longer of its bytes at
// DDR's rate and its vector instructions.
struct Pass {
  int64_t rows = 0, columns = 0;
  int64_t operations = 0;  // vector instructions for each vector; fp32 takes two for what fp16 takes one
  int64_t ddr_bytes = 0;   // read and written
};
Count count_pass(const Machine& machine, const Pass& pass);

// Forward of causal attention of one head, which leaves the probabilities in DDR for its backward. Query
// tiles as in the backward: each wave of DSPs loads its queries and all keys and values that one of them
// sees, makes scores, softmax and output by tile products and vector instructions, and writes probabilities
// and output; a wave's transfers run before and after its products, not under them.
Count count_attention_forward(const Machine& machine, const AttentionProblem& problem,
                              const AttentionTile& tile);

}  // namespace trainer::dsp
