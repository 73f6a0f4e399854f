// The single-threaded building blocks of matrix products, attention and the classifier, one table per
// instruction level. Everything is fp32 inside; bf16 is widened (exactly) while an operand is packed and
// rounded when a result is finished.
//
// A product C[m, panel] = A[m, k] B[k, panel] is computed in register tiles. The rows of C are cut into
// ceil(m / tile_rows) tiles of nearly equal height: tile t has rows [t m / tiles, (t + 1) m / tiles). An
// element of C is one chain of multiply-adds over ascending k, wherever it lies in a tile: its bits depend
// neither on m nor on how the work is divided.
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
  kPacked,   // tile t at a + t k tile_width, its element (row, kk) at [kk tile_width + row]
  kColumns,  // element (row, kk) of the whole A at a[kk a_stride + row]
  kRows,     // element (row, kk) of the whole A at a[row kQueryBlock + kk]
};

struct TileProduct {
  float* c;  // element (row, column) at c[row c_stride + column]
  int64_t c_stride;
  const float* a;
  TileForm form;
  int64_t a_stride;  // kColumns only
  const float* b;    // element (kk, column) at b[kk b_stride + column]
  int64_t b_stride;
  int64_t m, k;
  int64_t tile_begin, tile_end;  // the tiles to compute
  bool add;                      // C += the product
  // What the next call takes as b, brought closer meanwhile; may be null. Worth it where b comes from beyond
  // the second-level cache, whose own prefetching starts anew on every page.
  const float* next_b;
};

// to[kk to_stride + row] = from[row row_stride + kk k_stride] scale, for row < rows. Rows [rows, width) of
// `to` hold anything but what no operand could hold. One of the strides of `from` is 1; a k_stride is at
// least `rows`; width is a multiple of tile_width.
struct TilePacking {
  float* to;
  int64_t to_stride, width;
  ConstRef from;
  int64_t row_stride, k_stride, rows, k;
  float scale;
};

// c = tile (+ bias) (+ c), rounded once to the dtype of c.
struct TileFinish {
  Ref c;
  int64_t c_stride;
  const float* tile;  // [rows, panel]
  ConstRef bias;      // [columns]; may be null
  bool add;
  int64_t rows, columns;  // columns: at most a panel
};

// A block of scores, transposed: [keys, kQueryBlock]. Query q sees the keys [first[q], last[q]) of the block,
// which may lie outside [0, keys).
struct ScoreMask {
  const int32_t *first, *last;  // [kQueryBlock]; null: every query sees every key
};

struct TileTable {
  int64_t tile_rows;   // most rows of a tile
  int64_t tile_width;  // floats per k of a packed tile of A
  int64_t panel;       // columns of a tile, floats per k of a packed panel of B

  void (*pack)(const TilePacking& p);
  void (*multiply)(const TileProduct& p);
  void (*finish)(const TileFinish& f);

  // One step of the online softmax over keys (Milakov and Gimelshein, arXiv 1805.02867) for each query. In:
  // scores; `largest` and `total` so far, at first kNoScore and 0. Out: scores become exp(score - largest), 0
  // where masked; `factor` is what earlier sums must be multiplied by. Whether any factor differs from 1 is
  // returned.
  bool (*softmax_step)(float* scores, int64_t keys, const ScoreMask& mask, float* largest, float* total,
                       float* factor);
  // scores become the weights exp(score - log_sum_exp[q]), slopes become weight (slope - own[q]); 0 where
  // masked.
  void (*softmax_slopes)(float* scores, float* slopes, int64_t keys, const ScoreMask& mask,
                         const float* log_sum_exp, const float* own);
  // Row r of x[rows, columns], `columns` a multiple of a panel, is multiplied by factor[r].
  void (*scale_rows)(float* x, const float* factor, int64_t rows, int64_t columns);
  // y += x.
  void (*add)(float* y, const float* x, int64_t count);
  // y = scale x, rounded to y's dtype.
  void (*store_scaled)(Ref y, const float* x, float scale, int64_t count);
  float (*dot)(ConstRef a, ConstRef b, int64_t count);

  float (*largest)(const float* x, int64_t count);
  // The sum of exp(x[i] - shift): fp32 in blocks, the blocks in double.
  double (*sum_exponentials)(const float* x, float shift, int64_t count);
  // y[i] = exp(x[i] - shift), rounded to y's dtype; y may begin where x does.
  void (*exponentials)(Ref y, const float* x, float shift, int64_t count);
};

const TileTable& tile_table(Isa isa);

// The tables themselves, each of a translation unit of its own.
extern const TileTable plain_tiles, avx2_tiles, avx512_tiles;

}  // namespace trainer
