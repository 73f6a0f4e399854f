#include "dsp/passes.h"

#include <algorithm>

#include "dsp/inner_loop.h"

namespace trainer::dsp {
namespace {

// Scale, the row's largest (compare, eight halvings), subtract, exponential, its sum (add, eight halvings),
// divide.
constexpr int64_t kSoftmaxForwardOperations = 32;

}  // namespace

Count count_pass(const Machine& machine, const Pass& pass) {
  Timeline timeline(machine);
  timeline.transfer(Channel::kDdr, pass.ddr_bytes, 0);
  if (pass.operations > 0) {
    const int64_t vectors = ceil_div(pass.rows * ceil_div(pass.columns, machine.lanes), machine.dsps);
    timeline.compute(vectors * pass.operations + machine.vector_latency, machine.ddr_start_cycles);
  }
  return timeline.count();
}

Count count_attention_forward(const Machine& machine, const AttentionProblem& problem,
                              const AttentionTile& tile) {
  Timeline timeline(machine);
  const int64_t s = problem.sequence, d = problem.head_dim, wave = machine.dsps * tile.queries;
  int64_t written = 0;
  for (int64_t first = 0; first < s; first += wave) {
    const int64_t end = std::min(first + wave, s), rows = std::min(tile.queries, end - first);
    int64_t cycles = 0;
    for (int64_t key = 0; key < end; key += tile.keys) {
      const int64_t keys = std::min(tile.keys, end - key);
      cycles += multiply_cycles(machine, rows, d, keys) + multiply_cycles(machine, rows, keys, d) +
                vector_cycles(machine, rows, keys, kSoftmaxForwardOperations);
    }
    const int64_t loaded =
        timeline.transfer(Channel::kDdr, ((end - first) + 2 * end) * d * kHalfBytes, written);
    const int64_t done = timeline.compute(cycles, loaded);
    // Probabilities are written up to the last key that the wave sees.
    written = timeline.transfer(Channel::kDdr, (end - first) * (end + d) * kHalfBytes, done);
  }
  return timeline.count();
}

}  // namespace trainer::dsp
