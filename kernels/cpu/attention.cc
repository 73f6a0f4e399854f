// Attention in blocks (Dao, arXiv 2307.08691): a span of queries of one head against blocks of keys, with an
// online softmax; the backward pass recomputes the weights from log_sum_exp.
//
// Scores are held transposed, [keys, kQueryBlock]: the softmax runs down columns, without sums across a
// vector, and leaves the weights in the forms in which the next products take them. So what is summed per
// query, the output and dq, is held transposed, too. Where the processor multiplies bf16 itself, weights and
// slopes are rounded to bf16.
#include <omp.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "cpu/host_kernels.h"

namespace trainer {
namespace {

constexpr int64_t kKeyBlock = 128;
// Queries for which keys are packed once, at most. dk and dv are sums over such spans.
constexpr int64_t kQuerySpan = 8 * kQueryBlock;

constexpr int64_t parts_of(int64_t count, int64_t most) { return (count + most - 1) / most; }

// Spans of each thread, at least, where there are as many blocks of queries.
constexpr int64_t kThreadSpans = 4;

// The longest span which leaves every thread its spans, of `heads` heads.
int64_t span_for(const AttentionShape& s, int64_t heads, int threads) {
  int64_t span = kQuerySpan;
  while (span > kQueryBlock && heads * parts_of(s.query_length, span) < kThreadSpans * threads) span /= 2;
  return span;
}

// What one thread holds, in floats; every array begins on a cache line.
class Scratch {
 public:
  // Without memory it only counts.
  Scratch(const TileTable& tiles, int64_t head_dim, bool backward, float* memory) : at_(memory) {
    columns = parts_of(head_dim, tiles.panel) * tiles.panel;
    head_slots = tiles.slots_of(head_dim);
    key_slots = tiles.slots_of(kKeyBlock);
    const int64_t packed_keys = tiles.tiles_of(kKeyBlock) * tiles.tile_width * head_slots;
    const int64_t packed_columns = tiles.tiles_of(head_dim) * tiles.tile_width * key_slots;
    query_panels = take(kQuerySpan * head_slots);
    key_tiles = take(packed_keys);
    scores = take(kKeyBlock * kQueryBlock);
    first = reinterpret_cast<int32_t*>(take(kQuerySpan));
    last = reinterpret_cast<int32_t*>(take(kQuerySpan));
    block_first = reinterpret_cast<int32_t*>(take(kQueryBlock));
    block_last = reinterpret_cast<int32_t*>(take(kQueryBlock));
    sums = take(kQuerySpan * head_dim);
    statistic = take(kQuerySpan);
    total = take(kQuerySpan);
    factor = take(kQueryBlock);
    // In pairs, operands made of scores have memory of their own.
    const auto operand = [&](float* of, bool rows) {
      if (tiles.slot_elements == 1) return ScoreOperand{of, of};
      return ScoreOperand{
          rows ? take(tiles.tiles_of(kKeyBlock) * tiles.tile_rows * kQueryBlock / tiles.slot_elements)
               : nullptr,
          take(key_slots * kQueryBlock)};
    };
    if (!backward) {
      value_columns = take(packed_columns);
      weights = operand(scores, false);
    } else {
      const int64_t query_slots = tiles.slots_of(kQueryBlock) * (kQuerySpan / kQueryBlock);
      value_tiles = take(packed_keys);
      key_columns = take(packed_columns);
      queries = take(query_slots * columns);
      dout = take(query_slots * columns);
      dout_panels = take(kQuerySpan * head_slots);
      slopes = take(kKeyBlock * kQueryBlock);
      weights = operand(scores, true);
      changes = operand(slopes, true);
      dkeys = take(kKeyBlock * columns);
      dvalues = take(kKeyBlock * columns);
    }
  }
  int64_t used() const { return used_; }

  int64_t columns;                    // head_dim, rounded up to whole panels
  int64_t head_slots, key_slots;      // of head_dim and of a block of keys
  float* query_panels;                // [kQuerySpan / panel][head_slots, panel]
  float* key_tiles;                   // packed tiles of the key block, k = head_dim
  float* scores;                      // [kKeyBlock, kQueryBlock]
  int32_t *first, *last;              // [kQuerySpan]: the keys that each query sees
  int32_t *block_first, *block_last;  // [kQueryBlock]: the same, from the first key of the product
  float* sums;                        // [kQuerySpan / kQueryBlock][head_dim, kQueryBlock]: out, or dq
  // [kQuerySpan]: forward: largest score and sum; backward: log_sum_exp and dout . out
  float *statistic, *total;
  float* factor;                    // [kQueryBlock]
  ScoreOperand weights, changes{};  // changes: weight (slope - dout . out)
  float* value_columns = nullptr;   // packed tiles of the key block's values, transposed, k = keys
  float *value_tiles = nullptr, *key_columns = nullptr;
  float *queries = nullptr, *dout = nullptr;  // slots of [kQuerySpan, columns], k = queries
  float* dout_panels = nullptr;
  float* slopes = nullptr;                     // [kKeyBlock, kQueryBlock]
  float *dkeys = nullptr, *dvalues = nullptr;  // [kKeyBlock, columns]

 private:
  float* take(int64_t count) {
    float* begin = at_ ? at_ + used_ : nullptr;
    used_ += parts_of(count, 16) * 16;
    return begin;
  }
  float* at_;
  int64_t used_ = 0;
};

struct Operands {
  ConstRef q, k, v, dout, out;
  Ref result;  // out, or dq
  const float* log_sum_exp;
  float *dk, *dv;
};

// One head of one batch row, on one thread.
class Head {
 public:
  Head(const TileTable& tiles, const AttentionShape& s, const Operands& o, int64_t span_queries, int64_t row,
       int64_t head, Scratch& scratch)
      : tiles_(tiles),
        s_(s),
        o_(o),
        span_queries_(span_queries),
        row_(row),
        head_(head),
        kv_head_(head / (s.heads / s.kv_heads)),
        w_(scratch) {}

  // Span `span` of the queries against every key it sees.
  void forward(int64_t span, float* log_sum_exp) {
    begin_span(span);
    std::fill_n(w_.statistic, kQuerySpan, kNoScore);
    std::fill_n(w_.total, kQuerySpan, 0.0f);
    for (int64_t block = first_key_ / kKeyBlock; block * kKeyBlock < last_key_; ++block) {
      begin_keys(block);
      pack_columns(w_.value_columns, o_.v.at(value_at(key_begin_)), s_.v_stride);
      for (int64_t query = 0; query < query_count_; query += kQueryBlock) {
        if (begin_block(query)) forward_block(query);
      }
    }
    for (int64_t i = 0; i < query_count_; ++i)
      log_sum_exp[statistic_at(query_begin_ + i)] = w_.statistic[i] + std::log(w_.total[i]);
    store_sums(out_at(query_begin_), s_.heads * s_.head_dim,
               [&](int64_t query) { return 1.0f / w_.total[query]; });
  }

  // Span `span` of the queries against the key blocks [block_begin, block_end) that it sees.
  void backward(int64_t span, int64_t block_begin, int64_t block_end, bool want_queries, bool want_keys) {
    begin_span(span);
    block_begin = std::max(block_begin, first_key_ / kKeyBlock);
    block_end = std::min(block_end, parts_of(last_key_, kKeyBlock));
    if (block_begin >= block_end) return;
    const ConstRef dout = o_.dout.at(out_at(query_begin_));
    pack_panels(w_.dout_panels, dout, s_.heads * s_.head_dim);
    if (want_keys) {
      pack_queries(w_.dout, dout, s_.heads * s_.head_dim);
      pack_queries(w_.queries, o_.q.at(query_at(query_begin_)), s_.q_stride);
    }
    for (int64_t i = 0; i < query_count_; ++i) {
      const int64_t at = out_at(query_begin_ + i);
      w_.statistic[i] = o_.log_sum_exp[statistic_at(query_begin_ + i)];
      w_.total[i] = tiles_.dot(o_.dout.at(at), o_.out.at(at), s_.head_dim);
    }
    for (int64_t block = block_begin; block < block_end; ++block) {
      begin_keys(block);
      pack_tiles(w_.value_tiles, o_.v.at(value_at(key_begin_)), s_.v_stride);
      if (want_queries) pack_columns(w_.key_columns, o_.k.at(key_at(key_begin_)), s_.k_stride);
      if (want_keys) {
        std::fill_n(w_.dkeys, key_count_ * w_.columns, 0.0f);
        std::fill_n(w_.dvalues, key_count_ * w_.columns, 0.0f);
      }
      for (int64_t query = 0; query < query_count_; query += kQueryBlock) {
        if (begin_block(query)) backward_block(query, want_queries, want_keys);
      }
      for (int64_t j = 0; want_keys && j < key_count_; ++j) {
        const int64_t at = ((row_ * s_.key_rows + key_begin_ + j) * s_.kv_heads + kv_head_) * s_.head_dim;
        tiles_.add_scaled(o_.dk + at, w_.dkeys + j * w_.columns, s_.scale, s_.head_dim);
        tiles_.add_scaled(o_.dv + at, w_.dvalues + j * w_.columns, 1.0f, s_.head_dim);
      }
    }
    if (want_queries) store_sums(query_at(query_begin_), s_.q_stride, [&](int64_t) { return s_.scale; });
  }

 private:
  int64_t query_at(int64_t i) const {
    return (row_ * s_.query_length + i) * s_.q_stride + head_ * s_.head_dim;
  }
  int64_t out_at(int64_t i) const { return ((row_ * s_.query_length + i) * s_.heads + head_) * s_.head_dim; }
  int64_t statistic_at(int64_t i) const { return (row_ * s_.heads + head_) * s_.query_length + i; }
  int64_t key_at(int64_t j) const { return (row_ * s_.key_rows + j) * s_.k_stride + kv_head_ * s_.head_dim; }
  int64_t value_at(int64_t j) const {
    return (row_ * s_.key_rows + j) * s_.v_stride + kv_head_ * s_.head_dim;
  }

  // Slots of [queries, columns] from the span's queries, k = queries, block by block.
  void pack_queries(float* to, ConstRef from, int64_t stride) const {
    for (int64_t query = 0; query < query_count_; query += kQueryBlock) {
      tiles_.pack_b({to + query / tiles_.slot_elements * w_.columns, w_.columns, w_.columns,
                     from.at(query * stride), 1, stride, s_.head_dim,
                     std::min(kQueryBlock, query_count_ - query)});
    }
  }
  // [panel][head_slots, panel] from the span's queries.
  void pack_panels(float* to, ConstRef from, int64_t stride) const {
    for (int64_t query = 0; query < query_count_; query += tiles_.panel) {
      tiles_.pack_b({to + query * w_.head_slots, tiles_.panel, tiles_.panel, from.at(query * stride), stride,
                     1, std::min(tiles_.panel, query_count_ - query), s_.head_dim});
    }
  }
  // Tiles of the key block's rows.
  void pack_tiles(float* to, ConstRef from, int64_t stride) const {
    for (int64_t t = 0; t < tile_count_; ++t) {
      const int64_t key = tile_row(t);
      tiles_.pack_a({to + t * w_.head_slots * tiles_.tile_width, tiles_.tile_width, tiles_.tile_width,
                     from.at(key * stride), stride, 1, tile_row(t + 1) - key, s_.head_dim});
    }
  }
  // Tiles of the key block's columns, k = keys.
  void pack_columns(float* to, ConstRef from, int64_t stride) const {
    for (int64_t t = 0; t < tiles_.tiles_of(s_.head_dim); ++t) {
      const int64_t column = tiles_.first_row(s_.head_dim, t);
      tiles_.pack_a({to + t * w_.key_slots * tiles_.tile_width, tiles_.tile_width, tiles_.tile_width,
                     from.at(column), 1, stride, tiles_.first_row(s_.head_dim, t + 1) - column, key_count_});
    }
  }
  int64_t tile_row(int64_t tile) const { return tiles_.first_row(key_count_, tile); }

  // The span's sums, times factor(query), as rows of o_.result from `at` on.
  template <class Factor>
  void store_sums(int64_t at, int64_t stride, const Factor& factor) const {
    for (int64_t query = 0; query < query_count_; query += kQueryBlock) {
      const int64_t count = std::min(kQueryBlock, query_count_ - query);
      for (int64_t i = 0; i < count; ++i) w_.factor[i] = factor(query + i);
      tiles_.store_transposed(o_.result.at(at + query * stride), stride, w_.sums + query * s_.head_dim,
                              w_.factor, s_.head_dim, count);
    }
  }

  void begin_span(int64_t span) {
    query_begin_ = span * span_queries_;
    query_count_ = std::min(span_queries_, s_.query_length - query_begin_);
    std::fill_n(w_.first, kQuerySpan, 0);
    std::fill_n(w_.last, kQuerySpan, 0);
    first_key_ = s_.key_length;
    last_key_ = 0;
    for (int64_t i = 0; i < query_count_; ++i) {
      const int64_t own = s_.query_offset + query_begin_ + i;
      int64_t first = 0;
      if (!s_.document_starts.empty()) {
        const auto& starts = s_.document_starts;
        const auto after = std::upper_bound(starts.begin(), starts.end(), row_ * s_.key_rows + own);
        first = std::max<int64_t>(0, *(after - 1) - row_ * s_.key_rows);
      }
      w_.first[i] = static_cast<int32_t>(first);
      w_.last[i] = static_cast<int32_t>(std::min(own + 1, s_.key_length));
      first_key_ = std::min<int64_t>(first_key_, w_.first[i]);
      last_key_ = std::max<int64_t>(last_key_, w_.last[i]);
    }
    pack_panels(w_.query_panels, o_.q.at(query_at(query_begin_)), s_.q_stride);
    std::fill_n(w_.sums, parts_of(query_count_, kQueryBlock) * kQueryBlock * s_.head_dim, 0.0f);
  }

  void begin_keys(int64_t block) {
    key_begin_ = block * kKeyBlock;
    key_count_ = std::min(kKeyBlock, s_.key_length - key_begin_);
    tile_count_ = tiles_.tiles_of(key_count_);
    pack_tiles(w_.key_tiles, o_.k.at(key_at(key_begin_)), s_.k_stride);
  }

  // Prepares the block of queries from `query` on: which tiles of keys it sees, [tile_begin_, tile_end_), and
  // its mask. False: none.
  bool begin_block(int64_t query) {
    block_count_ = std::min(kQueryBlock, query_count_ - query);
    const auto [least_first, most_first] =
        std::minmax_element(w_.first + query, w_.first + query + block_count_);
    const auto [least_last, most_last] = std::minmax_element(w_.last + query, w_.last + query + block_count_);
    const int64_t begin = std::max<int64_t>(*least_first - key_begin_, 0);
    const int64_t end = std::min<int64_t>(*most_last - key_begin_, key_count_);
    if (begin >= end) return false;
    tile_begin_ = std::min(begin * tile_count_ / key_count_, tile_count_ - 1);
    while (tile_row(tile_begin_) > begin) --tile_begin_;
    while (tile_row(tile_begin_ + 1) <= begin) ++tile_begin_;
    tile_end_ = tile_begin_ + 1;
    while (tile_row(tile_end_) < end) ++tile_end_;
    block_key_ = tile_row(tile_begin_);
    block_keys_ = tile_row(tile_end_) - block_key_;
    const int64_t origin = key_begin_ + block_key_;
    mask_ = {};
    // Products over queries take whole blocks: what no query fills must be masked.
    if (block_count_ == kQueryBlock && *most_first <= origin && *least_last >= origin + block_keys_)
      return true;
    for (int64_t i = 0; i < kQueryBlock; ++i) {
      w_.block_first[i] = static_cast<int32_t>(w_.first[query + i] - origin);
      w_.block_last[i] = static_cast<int32_t>(w_.last[query + i] - origin);
    }
    mask_ = {w_.block_first, w_.block_last};
    return true;
  }

  // to[block keys, kQueryBlock] = tiles x panels, summed over head_dim.
  void multiply_keys(float* to, const float* key_tiles, const float* panels) const {
    for (int64_t q = 0; q < block_count_; q += tiles_.panel) {
      tiles_.multiply({.c = to + q - block_key_ * kQueryBlock,
                       .c_stride = kQueryBlock,
                       .a = key_tiles,
                       .form = TileForm::kPacked,
                       .a_stride = w_.head_slots * tiles_.tile_width,
                       .b = panels + q * w_.head_slots,
                       .b_stride = tiles_.panel,
                       .m = key_count_,
                       .k = w_.head_slots,
                       .tile_begin = tile_begin_,
                       .tile_end = tile_end_,
                       .add = false,
                       .next_b = nullptr});
    }
  }
  // sums[head_dim, kQueryBlock] += columns[head_dim, block keys] b[block keys, kQueryBlock].
  void multiply_columns(float* sums, const float* columns, const ScoreOperand& b) const {
    for (int64_t q = 0; q < block_count_; q += tiles_.panel) {
      tiles_.multiply({.c = sums + q,
                       .c_stride = kQueryBlock,
                       .a = columns + block_key_ / tiles_.slot_elements * tiles_.tile_width,
                       .form = TileForm::kPacked,
                       .a_stride = w_.key_slots * tiles_.tile_width,
                       .b = b.columns + q,
                       .b_stride = kQueryBlock,
                       .m = s_.head_dim,
                       .k = tiles_.slots_of(block_keys_),
                       .tile_begin = 0,
                       .tile_end = tiles_.tiles_of(s_.head_dim),
                       .add = true,
                       .next_b = nullptr});
    }
  }
  // to[block keys, columns] += a[block keys, queries] b[queries, columns].
  void multiply_rows(float* to, const ScoreOperand& a, const float* b) const {
    for (int64_t column = 0; column < w_.columns; column += tiles_.panel) {
      tiles_.multiply({.c = to + block_key_ * w_.columns + column,
                       .c_stride = w_.columns,
                       .a = a.rows,
                       .form = TileForm::kRows,
                       .a_stride = kQueryBlock / tiles_.slot_elements,
                       .b = b + column,
                       .b_stride = w_.columns,
                       .m = block_keys_,
                       .k = tiles_.slots_of(block_count_),
                       .tile_begin = 0,
                       .tile_end = tiles_.tiles_of(block_keys_),
                       .add = true,
                       .next_b = nullptr});
    }
  }

  void forward_block(int64_t query) const {
    multiply_keys(w_.scores, w_.key_tiles, w_.query_panels + query * w_.head_slots);
    float* sums = w_.sums + query * s_.head_dim;
    if (tiles_.softmax_step(w_.scores, block_keys_, mask_, s_.scale, w_.statistic + query, w_.total + query,
                            w_.factor, w_.weights)) {
      tiles_.scale_columns(sums, w_.factor, s_.head_dim);
    }
    multiply_columns(sums, w_.value_columns, w_.weights);
  }

  void backward_block(int64_t query, bool want_queries, bool want_keys) const {
    multiply_keys(w_.scores, w_.key_tiles, w_.query_panels + query * w_.head_slots);
    multiply_keys(w_.slopes, w_.value_tiles, w_.dout_panels + query * w_.head_slots);
    tiles_.softmax_slopes(w_.scores, w_.slopes, block_keys_, mask_, s_.scale, w_.statistic + query,
                          w_.total + query, w_.weights, w_.changes);
    if (want_keys) {
      const int64_t slots = query / tiles_.slot_elements * w_.columns;
      multiply_rows(w_.dvalues, w_.weights, w_.dout + slots);
      multiply_rows(w_.dkeys, w_.changes, w_.queries + slots);
    }
    if (want_queries) multiply_columns(w_.sums + query * s_.head_dim, w_.key_columns, w_.changes);
  }

  const TileTable& tiles_;
  const AttentionShape& s_;
  const Operands& o_;
  const int64_t span_queries_, row_, head_, kv_head_;
  Scratch& w_;
  int64_t query_begin_ = 0, query_count_ = 0, first_key_ = 0, last_key_ = 0;  // the span
  int64_t key_begin_ = 0, key_count_ = 0, tile_count_ = 0;                    // the block of keys
  // The block of queries: how many, and the keys it sees, counted from key_begin_.
  int64_t block_count_ = 0, tile_begin_ = 0, tile_end_ = 0, block_key_ = 0, block_keys_ = 0;
  ScoreMask mask_{};
};

int64_t scratch_floats(const TileTable& tiles, int64_t head_dim) {
  return std::max(Scratch(tiles, head_dim, false, nullptr).used(),
                  Scratch(tiles, head_dim, true, nullptr).used());
}

void check(const AttentionShape& s) {
  require(s.scale > 0, "attention with a scale of {}", s.scale);
  require(s.kv_heads > 0 && s.heads % s.kv_heads == 0, "attention of {} heads over {} key heads", s.heads,
          s.kv_heads);
  require(s.query_offset + s.query_length <= s.key_length && s.key_length <= s.key_rows,
          "attention of queries {} to {} over {} keys of {} rows", s.query_offset,
          s.query_offset + s.query_length, s.key_length, s.key_rows);
}

}  // namespace

size_t HostKernels::attention_workspace_bytes(const WorkspaceShape& shape) const {
  if (shape.head_dim == 0) return 0;
  const TileTable* bf16_tiles = products_.bf16_tiles;
  const int64_t any = scratch_floats(products_.tiles, shape.head_dim);
  const int64_t most = bf16_tiles ? std::max(any, scratch_floats(*bf16_tiles, shape.head_dim)) : any;
  return static_cast<size_t>(threads_ * most) * sizeof(float);
}

void HostKernels::attention_forward(Ref out, float* log_sum_exp, ConstRef q, ConstRef k, ConstRef v,
                                    const AttentionShape& s) {
  check(s);
  const TileTable& tiles = products_.tiles_for({q, k, v});
  const int64_t floats = scratch_floats(tiles, s.head_dim);
  std::byte* memory = workspace(static_cast<size_t>(threads_ * floats) * sizeof(float), "attention");
  const Operands operands{.q = q,
                          .k = k,
                          .v = v,
                          .dout = {},
                          .out = {},
                          .result = out,
                          .log_sum_exp = nullptr,
                          .dk = nullptr,
                          .dv = nullptr};
  const int64_t heads = s.batch * s.heads, span_queries = span_for(s, heads, threads_);
  const int64_t spans = parts_of(s.query_length, span_queries);
#pragma omp parallel num_threads(threads_)
  {
    const UseOfTiles use(tiles);
    Scratch scratch(tiles, s.head_dim, false,
                    reinterpret_cast<float*>(memory) + omp_get_thread_num() * floats);
    // The spans of a head follow each other, as they share its keys and values; the last sees the most keys
    // and goes first, so that threads end together.
#pragma omp for schedule(dynamic)
    for (int64_t task = 0; task < heads * spans; ++task) {
      const int64_t head = task / spans;
      Head(tiles, s, operands, span_queries, head / s.heads, head % s.heads, scratch)
          .forward(spans - 1 - task % spans, log_sum_exp);
    }
  }
}

void HostKernels::attention_backward(Ref dq, float* dk, float* dv, ConstRef dout, ConstRef out,
                                     const float* log_sum_exp, ConstRef q, ConstRef k, ConstRef v,
                                     const AttentionShape& s) {
  check(s);
  const TileTable& tiles = products_.tiles_for({q, k, v, dout});
  const int64_t floats = scratch_floats(tiles, s.head_dim);
  std::byte* memory = workspace(static_cast<size_t>(threads_ * floats) * sizeof(float), "attention");
  const Operands operands{.q = q,
                          .k = k,
                          .v = v,
                          .dout = dout,
                          .out = out,
                          .result = dq,
                          .log_sum_exp = log_sum_exp,
                          .dk = dk,
                          .dv = dv};
  const int64_t spans = parts_of(s.query_length, kQuerySpan), blocks = parts_of(s.key_length, kKeyBlock);
  const int64_t kv_heads = s.batch * s.kv_heads, group = s.heads / s.kv_heads;
  // dk and dv of a key head are sums over its queries: one thread takes a key head as a whole, in five
  // products per block. Where that leaves threads idle for longer than two more products take, keys and
  // queries are done apart: a thread takes a block of keys, then a span of queries. Every element is summed
  // in the same order either way.
  const bool whole = 7 * kv_heads >= 5 * threads_ * parts_of(kv_heads, threads_);
  const int64_t short_span = span_for(s, kv_heads * group, threads_);
  const int64_t short_spans = parts_of(s.query_length, short_span);
#pragma omp parallel num_threads(threads_)
  {
    const UseOfTiles use(tiles);
    Scratch scratch(tiles, s.head_dim, true,
                    reinterpret_cast<float*>(memory) + omp_get_thread_num() * floats);
    const auto head_of = [&](int64_t kv_head, int64_t member, int64_t queries) {
      return Head(tiles, s, operands, queries, kv_head / s.kv_heads, kv_head % s.kv_heads * group + member,
                  scratch);
    };
    if (whole) {
#pragma omp for schedule(dynamic)
      for (int64_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
        for (int64_t member = 0; member < group; ++member) {
          for (int64_t span = 0; span < spans; ++span)
            head_of(kv_head, member, kQuerySpan).backward(span, 0, blocks, true, true);
        }
      }
    } else {
#pragma omp for schedule(dynamic) nowait
      for (int64_t task = 0; task < kv_heads * blocks; ++task) {
        const int64_t block = task % blocks;
        for (int64_t member = 0; member < group; ++member) {
          for (int64_t span = 0; span < spans; ++span) {
            head_of(task / blocks, member, kQuerySpan).backward(span, block, block + 1, false, true);
          }
        }
      }
#pragma omp for schedule(dynamic)
      for (int64_t task = 0; task < kv_heads * group * short_spans; ++task) {
        const int64_t span = short_spans - 1 - task % short_spans, head = task / short_spans;
        head_of(head / group, head % group, short_span).backward(span, 0, blocks, true, false);
      }
    }
  }
}

}  // namespace trainer
