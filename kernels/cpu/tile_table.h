// The single-threaded building blocks of matrix products, attention and the classifier, one table per
// instruction level. Accumulators, scores and sums are fp32. A packed operand consists of slots of four
// bytes: one fp32 of k (bf16 is widened, exactly, while it is packed) or, for processors that multiply bf16
// themselves, two bf16 that are neighbours in k. Results are rounded when they are finished.
//
// A product C[m, panel] = A[m, k] B[k, panel] is computed in register tiles; tile t has the rows
// [first_row(t), first_row(t + 1)) of C. An element of C is one chain of multiply-adds over ascending k,
// wherever it lies in a tile, with what C held before at its begin or its end: its bits depend neither on m
// nor on how the work is divided.
#pragma once

#include <cstdint>

#include "cpu/isa.h"
#include "ops/tensor.h"

namespace trainer {

// Queries of one attention block: the row length of its matrices of scores.
constexpr int64_t kQueryBlock = 64;

// Below every score: where the largest score of an online softmax starts.
constexpr float kNoScore = -1e30f;

enum class TileForm : uint8_t {
  kPacked,  // tile t at a + t a_stride, as TileTable::pack_a leaves it
  kRows,    // the slot (row, kk) of the whole A at a[row a_stride + kk]; whole tiles of rows are read
};

// A product of packed operands. k counts slots, a multiple of TileTable::slot_multiple.
struct TileProduct {
  float* c;  // element (row, column) at c[row c_stride + column]
  int64_t c_stride;
  bool far_c = false;  // C comes from beyond the second-level cache
  const float* a;
  TileForm form;
  int64_t a_stride;  // of kRows kQueryBlock / slot_elements, unless TileTable::any_rows
  const float* b;    // slot (kk, column) at b[kk b_stride + column]
  int64_t b_stride;
  int64_t m, k;
  int64_t tile_begin, tile_end;  // the tiles to compute
  bool add;                      // C += the product
  // What the next call takes as b, brought closer meanwhile; may be null. Worth it where b comes from beyond
  // the second-level cache, whose own prefetching starts anew on every page.
  const float* next_b;
};

// Packs from[row row_stride + kk k_stride], row < rows, kk < k, for one tile of A or some columns of B. One
// of the strides of `from` is 1; a k_stride is at least `rows`; width is a multiple of the tile's width. Rows
// [rows, width) of `to` hold anything but what no operand could hold; the slots that fill up k to a multiple
// of TileTable::slot_multiple hold 0. Where to_stride is TileTable::panel, slots of B may lie in another
// order, in which a product whose b_stride is that finds them.
struct TilePacking {
  float* to;
  int64_t to_stride, width;  // slots from one kk to the next; of a tile of A both are TileTable::tile_width
  ConstRef from;             // bf16 where a slot is a pair
  int64_t row_stride, k_stride, rows, k;
};

// Logits become weights, exp(logit - largest of the row in this panel), 0 where that would be denormal.
struct PanelSoftmax {
  float *largest, *total;  // those of row r at [r stride]: its largest logit and the sum of its weights
  int64_t stride;
  const int32_t* labels;  // [rows]: columns, counted from the panel's first; may lie outside the panel
  int32_t first;          // what to subtract from a label
  float* label_logits;    // [rows], written where the label lies in the panel
};

// c = the sums of a product (+ bias) (+ c), or the weights of a softmax; rounded once to the dtype of c.
struct TileFinish {
  Ref c;  // element (row, column) at c[row c_stride + column], rows counted as the product's
  int64_t c_stride;
  ConstRef bias;  // [columns]; may be null
  bool add;
  int64_t columns;              // at most a panel
  const PanelSoftmax* softmax;  // null: none; else neither bias nor add
};

// A block of scores, transposed: [keys, kQueryBlock]. Query q sees the keys [first[q], last[q]) of the block,
// which may lie outside [0, keys).
struct ScoreMask {
  const int32_t *first, *last;  // [kQueryBlock]; null: every query sees every key
};

// The weights and slopes of attention as operands of the products that follow: `rows` in the form kRows, with
// k along the queries; `columns` as a B of b_stride kQueryBlock, with k along the keys. Where a slot is one
// fp32 both are the scores themselves.
struct ScoreOperand {
  float *rows, *columns;
};

struct TileTable {
  int64_t tile_rows;      // most rows of a tile
  int64_t tile_width;     // slots of a packed tile of A per slot of k
  int64_t panel;          // columns of a tile, slots of a packed panel of B per slot of k
  int64_t slot_elements;  // of k, in a slot
  int64_t slot_multiple;  // the k of a product, in slots, is a multiple of this
  bool any_rows;  // products take any matrix of whole tiles with contiguous k as it lies, in the form kRows
  bool even;      // m is shared out evenly between its tiles; else all but the last have tile_rows
  int64_t task_bytes;  // of packed A that stay in the second-level cache while panels of B pass by

  int64_t tiles_of(int64_t m) const { return (m + tile_rows - 1) / tile_rows; }
  int64_t first_row(int64_t m, int64_t tile) const {
    return even ? tile * m / tiles_of(m) : tile * tile_rows < m ? tile * tile_rows : m;
  }
  // Slots that hold k elements.
  int64_t slots_of(int64_t k) const {
    const int64_t unit = slot_elements * slot_multiple;
    return (k + unit - 1) / unit * slot_multiple;
  }

  // Around all calls of multiply on a thread; null: nothing to do.
  void (*begin)();
  void (*end)();
  void (*pack_a)(const TilePacking& p);
  void (*pack_b)(const TilePacking& p);
  void (*multiply)(const TileProduct& p);
  // The same, and the sums are finished: what p.c then holds is undefined. Without p.add p.c needs to hold
  // nothing before.
  void (*multiply_finish)(const TileProduct& p, const TileFinish& f);

  // One step of the online softmax over keys (Milakov and Gimelshein, arXiv 1805.02867) for each query. In:
  // scores, which count `scale` each; `largest` and `total` so far, at first kNoScore and 0. Out: `weights`
  // (columns only) become exp(scale score - largest), 0 where masked; `factor` is what earlier sums must be
  // multiplied by. Whether any factor differs from 1 is returned.
  bool (*softmax_step)(float* scores, int64_t keys, const ScoreMask& mask, float scale, float* largest,
                       float* total, float* factor, const ScoreOperand& weights);
  // `weights` (rows only) become exp(scale score - log_sum_exp[q]), `changes` (rows and columns) become
  // weight (slope - own[q]); 0 where masked. The operands may lie where scores and slopes do.
  void (*softmax_slopes)(const float* scores, const float* slopes, int64_t keys, const ScoreMask& mask,
                         float scale, const float* log_sum_exp, const float* own, const ScoreOperand& weights,
                         const ScoreOperand& changes);
  // x[r, q] is multiplied by factor[q], for x[rows, kQueryBlock].
  void (*scale_columns)(float* x, const float* factor, int64_t rows);
  // y[q y_stride + r] = factor[q] x[r, q], rounded to y's dtype, for q < columns of x[rows, kQueryBlock].
  void (*store_transposed)(Ref y, int64_t y_stride, const float* x, const float* factor, int64_t rows,
                           int64_t columns);
  // y += scale x.
  void (*add_scaled)(float* y, const float* x, float scale, int64_t count);
  float (*dot)(ConstRef a, ConstRef b, int64_t count);

  // The panels of one row (PanelSoftmax) as one: the sum of all weights as if they were exp(logit - top).
  double (*join_panels)(const float* largest, const float* total, int64_t panels, float top);
  float (*largest)(const float* x, int64_t count);
  // The weights of one row's panels, `columns` in all, become scale exp(logit - top), rounded to the dtype of
  // y.
  void (*scale_panels)(Ref y, const float* largest, float top, float scale, int64_t columns);
};

// While it lives, its thread may multiply.
class UseOfTiles {
 public:
  explicit UseOfTiles(const TileTable& tiles) : tiles_(tiles) {
    if (tiles_.begin) tiles_.begin();
  }
  ~UseOfTiles() {
    if (tiles_.end) tiles_.end();
  }
  UseOfTiles(const UseOfTiles&) = delete;
  UseOfTiles& operator=(const UseOfTiles&) = delete;

 private:
  const TileTable& tiles_;
};

// Multiplies operands of any dtype.
const TileTable& tile_table(Isa isa);
// Multiplies operands of bf16, in pairs; null where the level has no such instruction.
const TileTable* bf16_tile_table(Isa isa);

// The tables themselves, each of a translation unit of its own.
extern const TileTable plain_tiles, avx2_tiles, avx512_tiles, avx512_bf16_tiles, amx_tiles;

}  // namespace trainer
