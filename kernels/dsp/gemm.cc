#include "dsp/gemm.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "dsp/cluster.h"
#include "dsp/inner_loop.h"

namespace trainer::dsp {
namespace {

// One tile product of all DSPs.
struct GemmStep {
  int64_t row, panel, k, column, resident;  // where M_g, K_g, K_2, N_2 and the resident columns begin
  int64_t panel_depth, depth, columns;      // K_g, K_2 and N_2, smaller at the edges
};

bool same_panel(const GemmStep& a, const GemmStep& b) {
  return a.row == b.row && a.panel == b.panel && a.resident == b.resident;
}

class GemmProgram {
 public:
  GemmProgram(const Machine& machine, const GemmProblem& problem, const GemmTile& tile, bool with_values)
      : machine_(machine), problem_(problem), tile_(tile), cluster_(machine, with_values) {
    a_ = cluster_.ddr().allocate("A", problem.m, problem.k);
    b_ = cluster_.ddr().allocate("B", problem.k, problem.n);
    c_ = cluster_.ddr().allocate("C", problem.m, problem.n);
    a_g_ = cluster_.gsm().allocate("A_g", panel_rows(), tile.panel_depth);
    for (int d = 0; d < cluster_.shown_dsps(); ++d) {
      Buffers buffers;
      for (Block& block : buffers.a_2) block = cluster_.sm(d).allocate("A_2", tile.rows, tile.depth);
      for (Block& block : buffers.b_2) block = cluster_.am(d).allocate("B_2", tile.depth, tile.columns);
      buffers.c_2 = cluster_.am(d).allocate("C_2", tile.rows, tile.resident_columns);
      dsps_.push_back(buffers);
    }
    list_steps();
  }

  void put(const GemmOperands& operands) {
    write_values(operands.a, a_);
    write_values(operands.b, b_);
  }

  void run() {
    if (!cluster_.with_values()) check_first_and_last();
    written_.assign(static_cast<size_t>(tile_.resident_columns / tile_.columns + 1), 0);
    load_right(0);
    load_panel(0);
    load_left(0);
    for (size_t s = 0; s < steps_.size(); ++s) {
      const size_t next = s + 1;
      const bool more = next < steps_.size();
      const bool new_panel = more && !same_panel(steps_[s], steps_[next]);
      if (more) load_right(next);
      if (more && !new_panel) load_left(next);
      if (s > 0) write_back(s - 1);
      compute(s);
      if (new_panel) load_panel(next);
      if (new_panel) load_left(next);
    }
    write_back(steps_.size() - 1);
  }

  GemmResult result() {
    GemmResult result{.count = cluster_.timeline().count(), .c = {}};
    if (cluster_.with_values()) result.c = read_values(c_);
    return result;
  }

 private:
  struct Buffers {
    std::array<Block, 2> a_2, b_2;
    Block c_2;
  };

  // Every kind of DMA that the program makes, at its first and its last tile.
  void check_first_and_last() {
    for (const GemmStep* step : {&steps_.front(), &steps_.back()}) {
      move_panel(*step);
      move_tiles(*step, 0);
      move_result(*step);
    }
  }

  int64_t panel_rows() const { return tile_.rows * machine_.dsps; }
  int64_t rows_at(const GemmStep& step) const { return std::min(panel_rows(), problem_.m - step.row); }
  // Rows of one DSP; the last ones may have fewer or none.
  int64_t rows_of(const GemmStep& step, int dsp) const {
    return std::clamp<int64_t>(rows_at(step) - dsp * tile_.rows, 0, tile_.rows);
  }

  void list_steps() {
    for (int64_t resident = 0; resident < problem_.n; resident += tile_.resident_columns)
      for (int64_t row = 0; row < problem_.m; row += panel_rows())
        for (int64_t panel = 0; panel < problem_.k; panel += tile_.panel_depth)
          list_panel(resident, row, panel);
  }
  void list_panel(int64_t resident, int64_t row, int64_t panel) {
    const int64_t columns_end = std::min(resident + tile_.resident_columns, problem_.n);
    const int64_t k_end = std::min(panel + tile_.panel_depth, problem_.k);
    for (int64_t column = resident; column < columns_end; column += tile_.columns)
      for (int64_t k = panel; k < k_end; k += tile_.depth)
        steps_.push_back({row, panel, k, column, resident, k_end - panel, std::min(tile_.depth, k_end - k),
                          std::min(tile_.columns, columns_end - column)});
  }

  void move_panel(const GemmStep& step) {
    move(machine_, a_.part(step.row, step.panel, rows_at(step), step.panel_depth),
         a_g_.part(0, 0, rows_at(step), step.panel_depth));
  }
  void move_tiles(const GemmStep& step, size_t buffer) {
    for (int d = 0; d < cluster_.shown_dsps(); ++d) {
      const Buffers& dsp = dsps_[static_cast<size_t>(d)];
      const int64_t rows = rows_of(step, d);
      move(machine_, a_g_.part(d * tile_.rows, step.k - step.panel, rows, step.depth),
           dsp.a_2[buffer].part(0, 0, rows, step.depth));
      move(machine_, b_.part(step.k, step.column, step.depth, step.columns),
           dsp.b_2[buffer].part(0, 0, step.depth, step.columns));
    }
  }
  void move_result(const GemmStep& step) {
    for (int d = 0; d < cluster_.shown_dsps(); ++d) {
      const int64_t rows = rows_of(step, d);
      move(machine_, c_2(step, d), c_.part(step.row + d * tile_.rows, step.column, rows, step.columns));
    }
  }
  Block c_2(const GemmStep& step, int dsp) const {
    return dsps_[static_cast<size_t>(dsp)].c_2.part(0, step.column - step.resident, rows_of(step, dsp),
                                                    step.columns);
  }

  // When the buffers of step `s` are free: the step before the last has been computed.
  int64_t left(size_t s) const { return s >= 2 ? computed_[s % 2] : 0; }

  void load_right(size_t s) {
    const GemmStep& step = steps_[s];
    loaded_right_[s % 2] =
        cluster_.timeline().transfer(Channel::kDdr, step.depth * step.columns * kHalfBytes, left(s));
  }

  void load_left(size_t s) {
    const GemmStep& step = steps_[s];
    loaded_left_[s % 2] = cluster_.timeline().transfer(
        Channel::kOnChip, rows_at(step) * step.depth * kHalfBytes, std::max(left(s), panel_loaded_));
    if (cluster_.with_values()) move_tiles(step, s % 2);
  }

  // A_g has one buffer, which the DSPs give up together when they are done with it.
  void load_panel(size_t s) {
    const GemmStep& step = steps_[s];
    panel_loaded_ = cluster_.timeline().transfer(Channel::kDdr, rows_at(step) * step.panel_depth * kHalfBytes,
                                                 s > 0 ? computed_[(s - 1) % 2] : 0);
    if (cluster_.with_values()) move_panel(step);
  }

  void compute(size_t s) {
    const GemmStep& step = steps_[s];
    const int64_t ready = std::max({loaded_left_[s % 2], loaded_right_[s % 2], written(step)});
    computed_[s % 2] = cluster_.timeline().compute(
        multiply_cycles(machine_, rows_of(step, 0), step.depth, step.columns), ready);
    if (!cluster_.with_values()) return;
    for (int d = 0; d < cluster_.shown_dsps(); ++d) {
      const Buffers& dsp = dsps_[static_cast<size_t>(d)];
      const Block c = c_2(step, d);
      if (step.k == 0) c.fill(0);
      multiply(dsp.a_2[s % 2].part(0, 0, c.rows, step.depth),
               dsp.b_2[s % 2].part(0, 0, step.depth, step.columns), c);
    }
  }

  int64_t& written(const GemmStep& step) {
    return written_[static_cast<size_t>((step.column - step.resident) / tile_.columns)];
  }

  // Where step `s` was the last of its C_2.
  void write_back(size_t s) {
    const GemmStep& step = steps_[s];
    if (step.k + step.depth < problem_.k) return;
    written(step) = cluster_.timeline().transfer(Channel::kDdr, rows_at(step) * step.columns * kHalfBytes,
                                                 computed_[s % 2]);
    if (cluster_.with_values()) move_result(step);
  }

  Machine machine_;
  GemmProblem problem_;
  GemmTile tile_;
  Cluster cluster_;
  Block a_, b_, c_, a_g_;
  std::vector<Buffers> dsps_;
  std::vector<GemmStep> steps_;
  // Cycles at which: A_2 and B_2 of even and odd steps are full, and their products done; A_g is full; each
  // C_2 is in DDR.
  std::array<int64_t, 2> loaded_left_{}, loaded_right_{}, computed_{};
  int64_t panel_loaded_ = 0;
  std::vector<int64_t> written_;
};

}  // namespace

double GemmResult::utilisation(const Machine& machine, const GemmProblem& problem) const {
  const double macs =
      static_cast<double>(problem.m) * static_cast<double>(problem.k) * static_cast<double>(problem.n);
  return macs / (static_cast<double>(count.cycles) * machine.dsps * machine.lanes);
}

GemmResult run_gemm(const Machine& machine, const GemmProblem& problem, const GemmTile& tile,
                    const GemmOperands* operands) {
  if (std::min({problem.m, problem.k, problem.n, tile.rows, tile.depth, tile.columns, tile.panel_depth,
                tile.resident_columns}) < 1)
    input_error("a product's and its tile's lengths must be above 0");
  GemmProgram program(machine, problem, tile, operands != nullptr);
  if (operands != nullptr) program.put(*operands);
  program.run();
  return program.result();
}

}  // namespace trainer::dsp
