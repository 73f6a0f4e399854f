// C = A B on a simulated cluster, with the dataflow of RATrain's backend: a panel A_g of A from DDR to GSM;
// tiles A_2 of it from GSM to each DSP's SM; B_2 from DDR broadcast to every AM; C_2 in AM as accumulator;
// written back from AM to DDR. A_2 and B_2 have two buffers, so the next tile's are loaded under the current
// product; A_g has one.
#pragma once

#include <span>
#include <vector>

#include "dsp/timeline.h"

namespace trainer::dsp {

// C[m, n] = A[m, k] B[k, n].
struct GemmProblem {
  int64_t m = 0, k = 0, n = 0;
};

// Elements. C of `rows` x `resident_columns` stays in each AM while the whole depth passes, so A and B cross
// DDR once for each of these blocks' rows and columns and C once in all.
struct GemmTile {
  int64_t rows = 0;              // M_2, of one DSP; M_g is that of all DSPs
  int64_t depth = 0;             // K_2
  int64_t columns = 0;           // N_2
  int64_t panel_depth = 0;       // K_g, a multiple of K_2
  int64_t resident_columns = 0;  // a multiple of N_2, or n

  bool operator==(const GemmTile&) const = default;
};

// Row-major, [m, k] and [k, n]; rounded to fp16 on their way in.
struct GemmOperands {
  std::span<const float> a, b;
};

struct GemmResult {
  Count count;
  std::vector<float> c;  // [m, n]; empty without operands

  double utilisation(const Machine& machine, const GemmProblem& problem) const;
};

// Walks the tiles and counts cycles; with `operands` it moves and multiplies values, too, and counts the
// same. Throws InputError for a tile that does not fit a memory (naming it, the bytes asked for and free) and
// for one whose DMA is not aligned.
GemmResult run_gemm(const Machine& machine, const GemmProblem& problem, const GemmTile& tile,
                    const GemmOperands* operands = nullptr);

// True when all buffers of the tile find room in their memories and its DMA is aligned.
bool gemm_tile_fits(const Machine& machine, const GemmProblem& problem, const GemmTile& tile);

// The tile of fewest counted cycles among those that fit. Throws InputError when none does.
GemmTile search_gemm_tile(const Machine& machine, const GemmProblem& problem);

}  // namespace trainer::dsp
