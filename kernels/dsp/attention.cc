#include "dsp/attention.h"

#include <algorithm>

#include "base/error.h"
#include "dsp/attention_program.h"

namespace trainer::dsp {
AttentionProgram::AttentionProgram(const Machine& machine, const AttentionProblem& problem,
                                   const AttentionTile& tile, Staging staging, bool with_values)
    : machine_(machine), problem_(problem), tile_(tile), staging_(staging), cluster_(machine, with_values) {
  const int64_t s = problem.sequence, d = problem.head_dim, wave = machine.dsps * tile.queries;
  Memory& ddr = cluster_.ddr();
  q_ = ddr.allocate("Q", s, d);
  k_ = ddr.allocate("K", s, d);
  v_ = ddr.allocate("V", s, d);
  out_ = ddr.allocate("O", s, d);
  grad_out_ = ddr.allocate("GO", s, d);
  probabilities_ = ddr.allocate("P", s, s);
  grad_q_ = ddr.allocate("GQ", s, d);
  grad_k_ = ddr.allocate("GK", s, d);
  grad_v_ = ddr.allocate("GV", s, d);
  const int64_t summed_keys = resident() ? s : tile.keys;
  sum_k_ = cluster_.gsm().allocate("GK", summed_keys, d);
  sum_v_ = cluster_.gsm().allocate("GV", summed_keys, d);
  if (!resident()) {
    staged_gp_ = ddr.allocate("GP", wave, tile.keys);
    staged_gs_ = ddr.allocate("GS", wave, tile.keys);
  }
  for (int dsp = 0; dsp < cluster_.shown_dsps(); ++dsp) allocate(dsp);
}

void AttentionProgram::allocate(int dsp) {
  const int64_t d = problem_.head_dim;
  Memory &am = cluster_.am(dsp), &sm = cluster_.sm(dsp);
  Buffers b;
  b.q = am.allocate("Q_i", tile_.queries, d);
  b.grad_out = am.allocate("GO_i", tile_.queries, d);
  b.grad_q = am.allocate("GQ_i", tile_.queries, d);
  b.row_sums = am.allocate("D_i", tile_.queries, 1);
  for (size_t i = 0; i < ring(); ++i) {
    b.k.push_back(am.allocate("K_j", tile_.keys, d));
    b.v.push_back(am.allocate("V_j", d, tile_.keys));
    b.p.push_back(am.allocate("P_ij", tile_.queries, tile_.keys));
  }
  b.tile = am.allocate("GP_ij", tile_.queries, tile_.keys);
  if (!resident()) {
    for (Block& block : b.read) block = am.allocate("GP_ij", tile_.queries, tile_.keys);
    for (Block& block : b.gs) block = am.allocate("GS_ij", tile_.queries, tile_.keys);
  }
  b.part_k = am.allocate("GK_j", tile_.keys, d);
  b.part_v = am.allocate("GV_j", tile_.keys, d);
  b.left_grad_out = sm.allocate("GO_i", tile_.queries, d);
  b.left_scores = sm.allocate("GS_ij", tile_.queries, tile_.keys);
  b.left_transposed = sm.allocate("P_ij^T", tile_.keys, tile_.queries);
  dsps_.push_back(std::move(b));
}

void AttentionProgram::put(const AttentionOperands& operands) {
  write_values(operands.q, q_);
  write_values(operands.k, k_);
  write_values(operands.v, v_);
  write_values(operands.out, out_);
  write_values(operands.grad_out, grad_out_);
  write_values(operands.probabilities, probabilities_);
  scale_ = operands.scale;
}

AttentionResult AttentionProgram::result() {
  AttentionResult result{.count = cluster_.timeline().count(), .grad_q = {}, .grad_k = {}, .grad_v = {}};
  if (!cluster_.with_values()) return result;
  result.grad_q = read_values(grad_q_);
  result.grad_k = read_values(grad_k_);
  result.grad_v = read_values(grad_v_);
  return result;
}

AttentionResult run_attention_backward(const Machine& machine, const AttentionProblem& problem,
                                       const AttentionTile& tile, Staging staging,
                                       const AttentionOperands* operands) {
  if (std::min({problem.sequence, problem.head_dim, tile.queries, tile.keys}) < 1)
    input_error("the lengths of attention and its tile must be above 0");
  AttentionProgram program(machine, problem, tile, staging, operands != nullptr);
  if (operands != nullptr) program.put(*operands);
  program.run();
  return program.result();
}

bool attention_tile_fits(const Machine& machine, const AttentionProblem& problem, const AttentionTile& tile,
                         Staging staging) {
  const int64_t s = problem.sequence, d = problem.head_dim, r = tile.queries, c = tile.keys;
  const bool resident = staging == Staging::kResident;
  const int64_t key_tiles = resident ? 2 : 4, score_tiles = resident ? 3 : 9;
  const int64_t am = 3 * r * d + r + (2 * key_tiles + 2) * c * d + score_tiles * r * c;
  const int64_t sm = r * d + 2 * r * c;
  const int64_t gsm = 2 * (resident ? s : c) * d;
  const int64_t ddr = s * (8 * d + s) + (resident ? 0 : 2 * machine.dsps * r * c);
  const int64_t unit = machine.dma_alignment / kHalfBytes;
  return am * kHalfBytes <= machine.array_memory_bytes && sm * kHalfBytes <= machine.scalar_memory_bytes &&
         gsm * kHalfBytes <= machine.shared_memory_bytes && ddr * kHalfBytes <= machine.ddr_bytes &&
         s % unit == 0 && d % unit == 0 && r % unit == 0 && c % unit == 0;
}

AttentionTile search_attention_tile(const Machine& machine, const AttentionProblem& problem,
                                    Staging staging) {
  AttentionTile best;
  int64_t fewest = INT64_MAX;
  for (const int64_t queries : {16, 32, 48, 64, 96, 128, 176, 192, 256})
    for (const int64_t keys : {32, 64, 128, 256, 512}) {
      const AttentionTile tile{queries, keys};
      if (!attention_tile_fits(machine, problem, tile, staging)) continue;
      const int64_t cycles = run_attention_backward(machine, problem, tile, staging).count.cycles;
      if (cycles < fewest) {
        fewest = cycles;
        best = tile;
      }
    }
  if (fewest == INT64_MAX)
    input_error("no tile of attention over {} positions of {} fits the memories, aligned to {} bytes",
                problem.sequence, problem.head_dim, machine.dma_alignment);
  return best;
}

}  // namespace trainer::dsp
