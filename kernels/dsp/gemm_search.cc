#include <algorithm>
#include <set>
#include <vector>

#include "base/error.h"
#include "dsp/gemm.h"
#include "dsp/inner_loop.h"

namespace trainer::dsp {
namespace {

constexpr int64_t kLeastDepth = 32;  // of K_2

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// `total` cut into as few parts as are no longer than `longest`, or up to seven more: the length of a part,
// rounded up to `multiple`.
std::set<int64_t> lengths(int64_t total, int64_t longest, int64_t multiple) {
  const int64_t fewest = ceil_div(total, std::max<int64_t>(1, longest));
  std::set<int64_t> result;
  for (int64_t parts = fewest; parts < fewest + 8; ++parts)
    result.insert(std::min(total, round_up(ceil_div(total, parts), multiple)));
  return result;
}

// Powers of two times `least`, up to `most` of them and no longer than `total`.
std::set<int64_t> doublings(int64_t least, int most, int64_t total) {
  std::set<int64_t> result;
  for (int i = 0; i < most; ++i) result.insert(std::min(total, least << i));
  return result;
}

// K_g of the fewest panels of `rows` that find room in GSM, as even as K_2 allows.
int64_t longest_panel(const Machine& machine, const GemmProblem& problem, int64_t rows, int64_t depth) {
  const int64_t most = machine.shared_memory_bytes / (machine.dsps * rows * kHalfBytes) / depth * depth;
  if (most == 0) return depth;
  return std::min(problem.k, round_up(ceil_div(problem.k, ceil_div(problem.k, most)), depth));
}

// No walk of the tile takes fewer: its whole products and its panels, one after the other.
int64_t least_cycles(const Machine& machine, const GemmProblem& problem, const GemmTile& tile) {
  const int64_t passes = problem.m / (tile.rows * machine.dsps);
  const int64_t steps = passes * (problem.k / tile.depth) * (problem.n / tile.columns);
  const int64_t product = multiply_cycles(machine, tile.rows, tile.depth, tile.columns);
  const double panel_bytes = static_cast<double>(problem.m * tile.panel_depth * kHalfBytes) /
                             static_cast<double>(ceil_div(problem.m, tile.rows * machine.dsps));
  const auto panel = static_cast<int64_t>(panel_bytes * machine.clock_hz() / machine.ddr_bytes_per_second);
  const int64_t panels = passes * (problem.k / tile.panel_depth) * (problem.n / tile.resident_columns);
  return steps * product + panels * panel;
}

}  // namespace

bool gemm_tile_fits(const Machine& machine, const GemmProblem& problem, const GemmTile& tile) {
  const int64_t sm = 2 * tile.rows * tile.depth;
  const int64_t am = 2 * tile.depth * tile.columns + tile.rows * tile.resident_columns;
  const int64_t gsm = machine.dsps * tile.rows * tile.panel_depth;
  const int64_t ddr = problem.m * problem.k + problem.k * problem.n + problem.m * problem.n;
  const int64_t unit = machine.dma_alignment / kHalfBytes;
  const auto aligned = [&](int64_t elements) { return elements % unit == 0; };
  return sm * kHalfBytes <= machine.scalar_memory_bytes && am * kHalfBytes <= machine.array_memory_bytes &&
         gsm * kHalfBytes <= machine.shared_memory_bytes && ddr * kHalfBytes <= machine.ddr_bytes &&
         aligned(problem.k) && aligned(problem.n) && aligned(tile.depth) && aligned(tile.columns) &&
         aligned(tile.panel_depth) && aligned(tile.resident_columns);
}

GemmTile search_gemm_tile(const Machine& machine, const GemmProblem& problem) {
  struct Candidate {
    int64_t bound;
    GemmTile tile;
  };
  std::vector<Candidate> candidates;
  const int64_t most_rows = machine.scalar_memory_bytes / (2 * kLeastDepth * kHalfBytes);
  for (const int64_t rows : lengths(ceil_div(problem.m, machine.dsps), most_rows, 1))
    for (const int64_t depth : doublings(kLeastDepth, 4, problem.k))
      for (const int64_t columns : doublings(machine.lanes, 4, problem.n))
        for (const int64_t resident :
             lengths(problem.n, machine.array_memory_bytes / kHalfBytes / rows, columns)) {
          const GemmTile tile{rows, depth, columns, longest_panel(machine, problem, rows, depth), resident};
          if (gemm_tile_fits(machine, problem, tile))
            candidates.push_back({least_cycles(machine, problem, tile), tile});
        }
  std::ranges::stable_sort(candidates, {}, &Candidate::bound);
  GemmTile best;
  int64_t fewest = INT64_MAX;
  for (const Candidate& candidate : candidates) {
    if (candidate.bound >= fewest) break;
    const int64_t cycles = run_gemm(machine, problem, candidate.tile).count.cycles;
    if (cycles < fewest) {
      fewest = cycles;
      best = candidate.tile;
    }
  }
  if (candidates.empty())
    input_error("no tile of a product of {} x {} by {} x {} fits the memories, aligned to {} bytes",
                problem.m, problem.k, problem.k, problem.n, machine.dma_alignment);
  return best;
}

}  // namespace trainer::dsp
