// The tile program behind attention.h. One walk counts cycles and, where the cluster keeps values, computes
// them.
#pragma once

#include <array>
#include <vector>

#include "dsp/attention.h"
#include "dsp/cluster.h"

namespace trainer::dsp {

// A key tile under the query tiles of a wave: as many query tiles as there are DSPs, one after the other.
struct AttentionStep {
  int64_t first_query;  // of the wave
  int64_t key, keys;    // where the key tile begins, and its length
  // Cycles at which: K_j, V_j and P_ij are in AM; GP_ij and GS_ij are where the next product reads them; all
  // is done.
  int64_t loaded = 0, grad_probabilities = 0, grad_scores = 0, done = 0;
};

class AttentionProgram {
 public:
  AttentionProgram(const Machine& machine, const AttentionProblem& problem, const AttentionTile& tile,
                   Staging staging, bool with_values);

  void put(const AttentionOperands& operands);
  void run();
  AttentionResult result();

 private:
  struct Buffers {
    // AM
    Block q, grad_out, grad_q;      // [B_r, d]; grad_q holds O_i until the row sums are known
    Block row_sums;                 // D_i [B_r, 1]
    std::vector<Block> k;           // [B_c, d] each
    std::vector<Block> v;           // transposed, [d, B_c] each
    std::vector<Block> p;           // [B_r, B_c] each
    Block tile;                     // GP_ij; resident: then GS_ij
    std::array<Block, 2> read, gs;  // staged: GP_ij read back, which becomes GS_ij; GS_ij read back
    Block part_k, part_v;           // [B_c, d], this DSP's part of GK_j and GV_j
    // SM
    Block left_grad_out;                 // [B_r, d]
    Block left_scores, left_transposed;  // GS_ij [B_r, B_c]; P_ij^T, then GS_ij^T [B_c, B_r]
  };

  void allocate(int dsp);
  void begin_wave(int64_t first_query);
  void end_wave(int64_t first_query);
  void load(size_t n);
  void grad_probabilities(size_t n);  // GP = GO V^T
  void softmax_backward(size_t n);    // GS = scale P (GP - D)
  void stage_probabilities(size_t n);
  void products(size_t n);  // GV += P^T GO; GQ += GS K; GK += GS^T Q
  // Adds the DSPs' parts of a sum, which are ready at `at`, where the sum's place in GSM is free at
  // `sum_free`; returns when the parts may be overwritten.
  int64_t reduce(const AttentionStep& step, Block Buffers::*part, const Block& sum, int64_t at,
                 int64_t& sum_free);

  bool resident() const { return staging_ == Staging::kResident; }
  size_t ring() const {
    return resident() ? 2 : 4;
  }  // key tiles under way, and one more that is being loaded
  int64_t rows_of(int64_t first_query, int dsp) const;
  bool active(const AttentionStep& step, int dsp) const;
  int64_t active_rows(const AttentionStep& step) const;
  int64_t active_dsps(const AttentionStep& step) const;
  int64_t tile_bytes(const AttentionStep& step) const { return active_rows(step) * step.keys * kHalfBytes; }
  Block staged(const Block& area, const AttentionStep& step, int dsp) const;
  // `action(dsp, buffers, rows)` for each DSP that has memories here and queries that see the key tile.
  template <class Action>
  void each_active(const AttentionStep& step, Action action);

  Machine machine_;
  AttentionProblem problem_;
  AttentionTile tile_;
  Staging staging_;
  Cluster cluster_;
  float scale_ = 1;
  // DDR
  Block q_, k_, v_, out_, grad_out_, probabilities_, grad_q_, grad_k_, grad_v_, staged_gp_, staged_gs_;
  Block sum_k_, sum_v_;  // GSM: resident, of all keys; staged, of one key tile
  std::vector<Buffers> dsps_;
  std::vector<AttentionStep> steps_;  // of the wave
  // Cycles at which the last wave's products are done, this one's queries are in place, and buffers may be
  // written again.
  int64_t wave_done_ = 0, wave_begin_ = 0, tile_free_ = 0, part_k_free_ = 0, part_v_free_ = 0,
          sum_k_free_ = 0, sum_v_free_ = 0, probabilities_staged_ = 0;
  std::array<int64_t, 2> read_free_{};
};

}  // namespace trainer::dsp
