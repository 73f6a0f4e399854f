#include "cpu/blocked_product.h"

#include <omp.h>

#include <algorithm>

#include "base/error.h"

namespace trainer {
namespace {

// The longest part of a sum over k, in slots: a whole hidden size where it can be, so that a bf16 result
// needs no second pass.
constexpr int64_t kDepth = 1024;
// A block of C, whose columns of B, and rows of A where threads share them, are packed at a time.
constexpr int64_t kBlockRows = 1024, kBlockColumns = 2048;
// The most tiles of A and, where others take more, panels of B of a task.
constexpr int64_t kTaskTiles = 16, kTaskPanels = 8;
// Tasks of each thread, at least, where there is so much to do: cores are not equally fast.
constexpr int64_t kThreadTasks = 4;

// The most tiles or panels that are packed together, and how many rows of memory at a time.
constexpr int64_t kTogether = 16, kStrip = 32;

// Floats of a cache line.
constexpr int64_t kLine = 16;

constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
constexpr int64_t parts_of(int64_t count, int64_t most) { return (count + most - 1) / most; }

// Part `index` of `parts` nearly equal ones.
struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};
Range part(int64_t count, int64_t parts, int64_t index) {
  return {count * index / parts, count * (index + 1) / parts};
}

// Tiles of A of a task, at most, for parts of `depth` slots.
int64_t task_tiles(const TileTable& tiles, int64_t depth) {
  return std::clamp<int64_t>(tiles.task_bytes / (std::max<int64_t>(depth, 1) * tiles.tile_width * 4), 1,
                             kTaskTiles);
}

// The parts of a sum over k elements.
struct Depths {
  const TileTable& tiles;
  int64_t k;

  int64_t count() const { return parts_of(tiles.slots_of(k), kDepth); }
  // In elements. All but the last are whole slots.
  Range operator[](int64_t index) const {
    const int64_t unit = tiles.slot_elements * tiles.slot_multiple;
    const Range units = part(parts_of(k, unit), count(), index);
    return {units.begin * unit, std::min(k, units.end * unit)};
  }
};

// Where the tiles of A come from.
enum class TilesOfA : uint8_t {
  kInPlace,  // multiplied as they lie
  kShared,   // packed by all threads together, as B is, before any of them multiplies
  kOwn,  // packed by the task that multiplies them, into memory that stays in its thread's second-level cache
};

// How a product is divided.
struct Division {
  TilesOfA a;
  int64_t rows;  // the most of a block of C, all k of which is computed before the next block

  Division(const TileTable& tiles, int threads, const MatrixProduct& p) {
    const bool in_place = tiles.any_rows && p.a_k == 1 && p.a_row % tiles.slot_elements == 0 &&
                          p.m % tiles.tile_rows == 0 &&
                          p.k % (tiles.slot_elements * tiles.slot_multiple) == 0;
    // A task meets all panels of a block. With more than one block it would pack its tiles again; with few
    // tiles it would not be worth reading all panels.
    const int64_t enough =
        task_tiles(tiles, std::min(tiles.slots_of(p.k), kDepth)) / 2 * kThreadTasks * threads;
    const bool own = p.n <= kBlockColumns && tiles.tiles_of(p.m) >= enough;
    a = in_place ? TilesOfA::kInPlace : own ? TilesOfA::kOwn : TilesOfA::kShared;
    rows = a == TilesOfA::kShared || tiles.slots_of(p.k) > kDepth ? kBlockRows : std::max<int64_t>(p.m, 1);
  }
};

// What the workspace holds for any product within m x n x k, in slots and floats from its beginning.
struct Layout {
  int64_t a, b, own, sums, partial, end;
  int64_t own_floats, sums_floats;  // of a thread

  Layout(const TileTable& tiles, int threads, int64_t m, int64_t n, int64_t k) {
    const int64_t depth = std::min(tiles.slots_of(k), kDepth), tile_floats = tiles.tile_width * depth;
    const int64_t row_tiles = tiles.tiles_of(std::min(m, kBlockRows));
    const int64_t columns = round_up(std::min(n, kBlockColumns), tiles.panel);
    // No less than the tiles of a task take with any smaller depth.
    own_floats = round_up(
        std::max(tile_floats, std::min(kTaskTiles * tile_floats, tiles.task_bytes / int64_t{sizeof(float)})),
        kLine);
    sums_floats = kTaskTiles * tiles.tile_rows * tiles.panel;
    a = 0;
    b = round_up(a + row_tiles * tile_floats, kLine);
    own = round_up(b + columns * depth, kLine);
    sums = own + threads * own_floats;
    partial = sums + threads * sums_floats;
    // A block may have the whole of its last tile.
    end = partial + (tiles.slots_of(k) > kDepth ? columns * row_tiles * tiles.tile_rows : 0);
  }
};

// A packed operand: tile or panel i at memory + i stride.
struct Packed {
  float* memory;
  int64_t stride;
};

// One block of C, [rows, columns], all of k.
class Block {
 public:
  Block(const TileTable& tiles, const MatrixProduct& p, const Division& division, const Layout& at,
        float* memory, Range rows, Range columns)
      : tiles_(tiles), p_(p), division_(division), at_(at), memory_(memory), rows_(rows), columns_(columns) {
    tile_count_ = tiles_.tiles_of(rows_.size());
    panel_count_ = parts_of(columns_.size(), tiles_.panel);
    // fp32 results of whole panels are stored from the registers; others pass through a buffer.
    direct_ = p_.c.dtype == DType::kF32 && !p_.bias && !p_.softmax;
  }

  // Called by all threads, for one part of k after the other.
  void compute(Range depth, bool first, bool last, bool pack_a, bool pack_b) const {
    const DepthPart of_k{depth, tiles_.slots_of(depth.size()), first, last};
    const Packed a{memory_ + at_.a, of_k.slots * tiles_.tile_width},
        b{memory_ + at_.b, of_k.slots * tiles_.panel};
    if (pack_a && division_.a == TilesOfA::kShared)
      pack_together(tile_count_, [&](Range own) { pack(Operand::kA, a, own, depth); });
    if (pack_b) pack_together(panel_count_, [&](Range own) { pack(Operand::kB, b, own, depth); });
#pragma omp barrier
    const bool own = division_.a == TilesOfA::kOwn;
    const int64_t most_tiles = parts_of(tile_count_, task_tiles(tiles_, of_k.slots));
    const int64_t tile_groups = own ? std::max(most_tiles, tasks_at_least(tile_count_)) : most_tiles;
    const int64_t panel_groups =
        own ? 1
            : std::min(panel_count_, std::max(parts_of(panel_count_, kTaskPanels),
                                              parts_of(kThreadTasks * omp_get_num_threads(), tile_groups)));
#pragma omp for schedule(dynamic)
    for (int64_t task = 0; task < tile_groups * panel_groups; ++task) {
      const Range tiles = part(tile_count_, tile_groups, task / panel_groups),
                  panels = part(panel_count_, panel_groups, task % panel_groups);
      Packed tiles_of_a = a;
      if (own) {
        tiles_of_a.memory =
            memory_ + at_.own + omp_get_thread_num() * at_.own_floats - tiles.begin * a.stride;
        pack(Operand::kA, tiles_of_a, tiles, depth);
      }
      for (int64_t panel = panels.begin; panel < panels.end; ++panel)
        multiply_panel(tiles, panel, panel + 1 < panels.end, tiles_of_a, b, of_k);
    }
  }

 private:
  // Of the sum over k.
  struct DepthPart {
    Range depth;
    int64_t slots;
    bool first, last;
  };

  enum class Operand : uint8_t { kA, kB };

  static int64_t tasks_at_least(int64_t count) {
    return std::min<int64_t>(count, kThreadTasks * omp_get_num_threads());
  }
  template <class Pack>
  static void pack_together(int64_t count, const Pack& pack) {
    const int64_t groups = std::max(parts_of(count, kTogether), tasks_at_least(count));
#pragma omp for schedule(dynamic) nowait
    for (int64_t group = 0; group < groups; ++group) pack(part(count, groups, group));
  }

  // Packs tiles of A or panels of B: where each k is another row in memory, a strip of rows at a time, so
  // that what lies beside each other there is read together.
  void pack(Operand operand, Packed to, Range own, Range depth) const {
    const bool a = operand == Operand::kA;
    const ConstRef from = a ? p_.a : p_.b;
    const int64_t k_stride = a ? p_.a_k : p_.b_k, row_stride = a ? p_.a_row : p_.b_column;
    const int64_t width = a ? tiles_.tile_width : tiles_.panel;
    const int64_t strip = k_stride == 1 ? depth.size() : kStrip;
    for (int64_t begin = depth.begin; begin < depth.end; begin += strip) {
      for (int64_t i = own.begin; i < own.end; ++i) {
        const Range rows = a ? tile_rows({i, i + 1}) : panel_columns(i);
        const int64_t row = (a ? rows_ : columns_).begin + rows.begin;
        const TilePacking packing{
            .to = to.memory + i * to.stride + (begin - depth.begin) / tiles_.slot_elements * width,
            .to_stride = width,
            .width = width,
            .from = from.at(row * row_stride + begin * k_stride),
            .row_stride = row_stride,
            .k_stride = k_stride,
            .rows = rows.size(),
            .k = std::min(depth.end - begin, strip)};
        a ? tiles_.pack_a(packing) : tiles_.pack_b(packing);
      }
    }
  }

  Range tile_rows(Range tiles) const {
    return {tiles_.first_row(rows_.size(), tiles.begin), tiles_.first_row(rows_.size(), tiles.end)};
  }
  Range panel_columns(int64_t panel) const {
    return {panel * tiles_.panel, std::min((panel + 1) * tiles_.panel, columns_.size())};
  }

  void multiply_panel(Range tiles, int64_t panel, bool more, Packed a, Packed b,
                      const DepthPart& of_k) const {
    const Range own_rows = tile_rows(tiles), own_columns = panel_columns(panel);
    const bool direct = direct_ && own_columns.size() == tiles_.panel;
    float* sum;  // row own_rows.begin
    if (direct) {
      sum = p_.c.at((rows_.begin + own_rows.begin) * p_.c_stride + columns_.begin + own_columns.begin).f32();
    } else if (of_k.first && of_k.last) {
      sum = memory_ + at_.sums + omp_get_thread_num() * at_.sums_floats;
    } else {
      sum = memory_ + at_.partial + (panel * rows_.size() + own_rows.begin) * tiles_.panel;
    }
    const int64_t stride = direct ? p_.c_stride : tiles_.panel;
    const ConstRef rows_of_a = p_.a.at(rows_.begin * p_.a_row + of_k.depth.begin * p_.a_k);
    const bool in_place = division_.a == TilesOfA::kInPlace;
    const float* panel_of_b = b.memory + panel * b.stride;
    const TileProduct product{.c = sum - own_rows.begin * stride,
                              .c_stride = stride,
                              .far_c = direct,
                              .a = in_place ? static_cast<const float*>(rows_of_a.data) : a.memory,
                              .form = in_place ? TileForm::kRows : TileForm::kPacked,
                              .a_stride = in_place ? p_.a_row / tiles_.slot_elements : a.stride,
                              .b = panel_of_b,
                              .b_stride = tiles_.panel,
                              .m = rows_.size(),
                              .k = of_k.slots,
                              .tile_begin = tiles.begin,
                              .tile_end = tiles.end,
                              .add = !of_k.first || (direct && p_.add),
                              .next_b = more ? panel_of_b + b.stride : nullptr};
    if (direct || !of_k.last) return tiles_.multiply(product);
    const int64_t column = columns_.begin + own_columns.begin;
    PanelSoftmax softmax;
    if (p_.softmax) {
      const int64_t panels = parts_of(p_.n, tiles_.panel), at = rows_.begin * panels + column / tiles_.panel;
      softmax = {.largest = p_.softmax->largest + at,
                 .total = p_.softmax->total + at,
                 .stride = panels,
                 .labels = p_.softmax->labels + rows_.begin,
                 .first = p_.softmax->first + static_cast<int32_t>(column),
                 .label_logits = p_.softmax->label_logits + rows_.begin};
    }
    tiles_.multiply_finish(product, {.c = p_.c.at(rows_.begin * p_.c_stride + column),
                                     .c_stride = p_.c_stride,
                                     .bias = p_.bias ? p_.bias.at(column) : ConstRef{},
                                     .add = p_.add,
                                     .columns = own_columns.size(),
                                     .softmax = p_.softmax ? &softmax : nullptr});
  }

  const TileTable& tiles_;
  const MatrixProduct& p_;
  const Division& division_;
  const Layout& at_;
  float* memory_;
  Range rows_, columns_;
  int64_t tile_count_, panel_count_;
  bool direct_;
};

}  // namespace

size_t blocked_product_bytes(const TileTable& tiles, int threads, int64_t m, int64_t n, int64_t k) {
  return static_cast<size_t>(Layout(tiles, threads, m, n, k).end) * sizeof(float);
}

void blocked_product(const TileTable& tiles, int threads, const MatrixProduct& p,
                     std::span<std::byte> workspace) {
  const Layout at(tiles, threads, p.m, p.n, p.k);
  require(static_cast<size_t>(at.end) * sizeof(float) <= workspace.size(),
          "a product of {} x {} x {} needs {} bytes of workspace, {} are granted", p.m, p.n, p.k,
          at.end * static_cast<int64_t>(sizeof(float)), workspace.size());
  float* memory = reinterpret_cast<float*>(workspace.data());
  const Division division(tiles, threads, p);
  const int64_t all_tiles = tiles.tiles_of(p.m), all_panels = parts_of(p.n, tiles.panel);
  const int64_t row_blocks = parts_of(p.m, division.rows), column_blocks = parts_of(p.n, kBlockColumns);
  const Depths depths{tiles, p.k};
#pragma omp parallel num_threads(threads)
  {
    const UseOfTiles use(tiles);
    for (int64_t r = 0; r < row_blocks; ++r) {
      for (int64_t c = 0; c < column_blocks; ++c) {
        const Range own_tiles = part(all_tiles, row_blocks, r), panels = part(all_panels, column_blocks, c);
        const Block block(tiles, p, division, at, memory,
                          {std::min(p.m, own_tiles.begin * tiles.tile_rows),
                           std::min(p.m, own_tiles.end * tiles.tile_rows)},
                          {panels.begin * tiles.panel, std::min(p.n, panels.end * tiles.panel)});
        // With one part of k, A stays packed from one block of columns to the next, and where there is one
        // such block, B from one block of rows to the next.
        const bool pack_a = depths.count() > 1 || c == 0;
        const bool pack_b = depths.count() > 1 || column_blocks > 1 || r == 0;
        for (int64_t d = 0; d < depths.count(); ++d)
          block.compute(depths[d], d == 0, d == depths.count() - 1, pack_a, pack_b);
      }
    }
  }
}

}  // namespace trainer
