#include "cpu/blocked_product.h"

#include <omp.h>

#include <algorithm>

#include "base/error.h"

namespace trainer {
namespace {

// The longest part of a sum over k, in slots: a whole hidden size where it can be, so that a bf16 result
// needs no second pass.
constexpr int64_t kDepth = 1024;
// A block of C. Every element of an operand is packed once per this many columns or rows.
constexpr int64_t kBlockRows = 1024, kBlockColumns = 2048;
// The most tiles of A of a task.
constexpr int64_t kTaskTiles = 16;
// Panels of B per task, at most; fewer where that would leave threads idle.
constexpr int64_t kTaskPanels = 8;

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

// Tiles of A of a task, for parts of `depth` slots.
int64_t task_tiles(const TileTable& tiles, int64_t depth) {
  return std::clamp<int64_t>(tiles.task_bytes / (depth * tiles.tile_width * 4), 1, kTaskTiles);
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

// What the workspace holds, in slots and floats from its beginning.
struct Layout {
  int64_t rows, panels, depth;  // largest block
  int64_t a, b, partial, task, end;

  Layout(const TileTable& tiles, int threads, int64_t m, int64_t n, int64_t k) {
    rows = std::min(m, kBlockRows);
    panels = parts_of(std::min(n, kBlockColumns), tiles.panel);
    depth = std::min(tiles.slots_of(k), kDepth);
    a = 0;
    b = round_up(a + tiles.tiles_of(rows) * tiles.tile_width * depth, kLine);
    partial = round_up(b + panels * tiles.panel * depth, kLine);
    task = round_up(partial + (tiles.slots_of(k) > kDepth ? panels * tiles.panel * rows : 0), kLine);
    end = task + threads * task_floats(tiles);
  }
  static int64_t task_floats(const TileTable& tiles) { return kTaskTiles * tiles.tile_rows * tiles.panel; }
};

// One block of C, [rows, columns], all of k.
class Block {
 public:
  Block(const TileTable& tiles, const MatrixProduct& p, const Layout& at, float* memory, Range rows,
        Range columns)
      : tiles_(tiles), p_(p), at_(at), memory_(memory), rows_(rows), columns_(columns) {
    tile_count_ = tiles_.tiles_of(rows_.size());
    panel_count_ = parts_of(columns_.size(), tiles_.panel);
    // fp32 results of whole panels are stored from the registers; others pass through a buffer.
    direct_ = p_.c.dtype == DType::kF32 && !p_.bias && !p_.softmax;
    whole_rows_ = tiles_.any_rows && p_.a_k == 1 && p_.a_row % tiles_.slot_elements == 0 &&
                  rows_.size() % tiles_.tile_rows == 0;
  }

  void pack_a(Range depth) const {
    if (in_place(depth)) return;
    in_strips(tile_count_, depth.size(), p_.a_k, [&](int64_t t, Range strip) {
      const Range own = tile_rows({t, t + 1});
      tiles_.pack_a(
          {.to =
               memory_ + at_.a + (t * slots(depth) + strip.begin / tiles_.slot_elements) * tiles_.tile_width,
           .to_stride = tiles_.tile_width,
           .width = tiles_.tile_width,
           .from = p_.a.at((rows_.begin + own.begin) * p_.a_row + (depth.begin + strip.begin) * p_.a_k),
           .row_stride = p_.a_row,
           .k_stride = p_.a_k,
           .rows = own.size(),
           .k = strip.size()});
    });
  }

  void pack_b(Range depth) const {
    in_strips(panel_count_, depth.size(), p_.b_k, [&](int64_t panel, Range strip) {
      tiles_.pack_b(
          {.to = memory_ + at_.b + (panel * slots(depth) + strip.begin / tiles_.slot_elements) * tiles_.panel,
           .to_stride = tiles_.panel,
           .width = tiles_.panel,
           .from = p_.b.at((columns_.begin + panel * tiles_.panel) * p_.b_column +
                           (depth.begin + strip.begin) * p_.b_k),
           .row_stride = p_.b_column,
           .k_stride = p_.b_k,
           .rows = panel_columns(panel),
           .k = strip.size()});
    });
  }

  void multiply(Range depth, bool first, bool last) const {
    const int64_t groups = parts_of(tile_count_, task_tiles(tiles_, slots(depth)));
    const int64_t wanted = parts_of(4 * omp_get_num_threads(), groups);
    const int64_t panel_groups =
        std::min(panel_count_, std::max(wanted, parts_of(panel_count_, kTaskPanels)));
#pragma omp for schedule(dynamic)
    for (int64_t task = 0; task < groups * panel_groups; ++task) {
      const Range own_tiles = part(tile_count_, groups, task / panel_groups);
      const Range own_panels = part(panel_count_, panel_groups, task % panel_groups);
      for (int64_t panel = own_panels.begin; panel < own_panels.end; ++panel) {
        multiply_panel(own_tiles, panel, panel + 1 < own_panels.end, depth, first, last);
      }
    }
  }

 private:
  // Packs tiles or panels, some together: where each k is another row in memory, a strip of rows at a time,
  // so that what lies beside each other there is read together.
  template <class Pack>
  void in_strips(int64_t count, int64_t k, int64_t k_stride, const Pack& pack) const {
    const int64_t strip = k_stride == 1 ? k : kStrip;
    const int64_t groups =
        std::max(parts_of(count, kTogether), std::min<int64_t>(count, 4 * omp_get_num_threads()));
#pragma omp for schedule(dynamic) nowait
    for (int64_t group = 0; group < groups; ++group) {
      const Range own = part(count, groups, group);
      for (int64_t begin = 0; begin < k; begin += strip)
        for (int64_t i = own.begin; i < own.end; ++i) pack(i, Range{begin, std::min(k, begin + strip)});
    }
  }
  int64_t slots(Range depth) const { return tiles_.slots_of(depth.size()); }
  // Whether A is multiplied as it lies.
  bool in_place(Range depth) const {
    return whole_rows_ && depth.size() == slots(depth) * tiles_.slot_elements;
  }
  Range tile_rows(Range tiles) const {
    return {tiles_.first_row(rows_.size(), tiles.begin), tiles_.first_row(rows_.size(), tiles.end)};
  }
  int64_t panel_columns(int64_t panel) const {
    return std::min(tiles_.panel, columns_.size() - panel * tiles_.panel);
  }

  void multiply_panel(Range own_tiles, int64_t panel, bool more, Range depth, bool first, bool last) const {
    const Range own_rows = tile_rows(own_tiles);
    const bool direct = direct_ && panel_columns(panel) == tiles_.panel;
    float* sum;  // row own_rows.begin
    if (direct) {
      sum =
          p_.c.at((rows_.begin + own_rows.begin) * p_.c_stride + columns_.begin + panel * tiles_.panel).f32();
    } else if (first && last) {
      sum = memory_ + at_.task + omp_get_thread_num() * Layout::task_floats(tiles_);
    } else {
      sum = memory_ + at_.partial + (panel * rows_.size() + own_rows.begin) * tiles_.panel;
    }
    const int64_t stride = direct ? p_.c_stride : tiles_.panel;
    const int64_t k = slots(depth);
    const bool unpacked = in_place(depth);
    const ConstRef own = p_.a.at(rows_.begin * p_.a_row + depth.begin * p_.a_k);
    const float* b = memory_ + at_.b + panel * k * tiles_.panel;
    const TileProduct product{.c = sum - own_rows.begin * stride,
                              .c_stride = stride,
                              .far_c = direct,
                              .a = unpacked ? static_cast<const float*>(own.data) : memory_ + at_.a,
                              .form = unpacked ? TileForm::kRows : TileForm::kPacked,
                              .a_stride = unpacked ? p_.a_row / tiles_.slot_elements : k * tiles_.tile_width,
                              .b = b,
                              .b_stride = tiles_.panel,
                              .m = rows_.size(),
                              .k = k,
                              .tile_begin = own_tiles.begin,
                              .tile_end = own_tiles.end,
                              .add = !first || (direct && p_.add),
                              .next_b = more ? b + k * tiles_.panel : nullptr};
    if (direct || !last) return tiles_.multiply(product);
    const int64_t column = columns_.begin + panel * tiles_.panel;
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
                                     .columns = panel_columns(panel),
                                     .softmax = p_.softmax ? &softmax : nullptr});
  }

  const TileTable& tiles_;
  const MatrixProduct& p_;
  const Layout& at_;
  float* memory_;
  Range rows_, columns_;
  int64_t tile_count_, panel_count_;
  bool direct_, whole_rows_;
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
  const int64_t row_blocks = parts_of(p.m, kBlockRows);
  const int64_t all_panels = parts_of(p.n, tiles.panel);
  const int64_t column_blocks = parts_of(all_panels, kBlockColumns / tiles.panel);
  const Depths depths{tiles, p.k};
#pragma omp parallel num_threads(threads)
  {
    const UseOfTiles use(tiles);
    for (int64_t rows = 0; rows < row_blocks; ++rows) {
      for (int64_t columns = 0; columns < column_blocks; ++columns) {
        const Range panels = part(all_panels, column_blocks, columns);
        const Block block(tiles, p, at, memory, part(p.m, row_blocks, rows),
                          {panels.begin * tiles.panel, std::min(p.n, panels.end * tiles.panel)});
        for (int64_t d = 0; d < depths.count(); ++d) {
          const Range depth = depths[d];
          // With one part, A stays packed from one block of columns to the next, and where there is one such
          // block, B from one block of rows to the next.
          if (depths.count() > 1 || columns == 0) block.pack_a(depth);
          if (depths.count() > 1 || column_blocks > 1 || rows == 0) block.pack_b(depth);
#pragma omp barrier
          block.multiply(depth, d == 0, d == depths.count() - 1);
        }
      }
    }
  }
}

}  // namespace trainer
