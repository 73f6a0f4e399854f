#include "dsp/attention_program.h"

#include <algorithm>

#include "base/error.h"
#include "dsp/inner_loop.h"

namespace trainer::dsp {
namespace {

// Vector instructions: subtract the row's sum, times P, times the scale.
constexpr int64_t kSoftmaxOperations = 3;
// Multiply-add, then eight halvings to sum 256 lanes.
constexpr int64_t kRowSumOperations = 9;

}  // namespace

template <class Action>
void AttentionProgram::each_active(const AttentionStep& step, Action action) {
  for (int d = 0; d < cluster_.shown_dsps(); ++d)
    if (active(step, d)) action(d, dsps_[static_cast<size_t>(d)], rows_of(step.first_query, d));
}

int64_t AttentionProgram::rows_of(int64_t first_query, int dsp) const {
  return std::clamp<int64_t>(problem_.sequence - first_query - dsp * tile_.queries, 0, tile_.queries);
}

// Causal: a query sees the keys up to its own place.
bool AttentionProgram::active(const AttentionStep& step, int dsp) const {
  const int64_t rows = rows_of(step.first_query, dsp);
  return rows > 0 && step.first_query + dsp * tile_.queries + rows > step.key;
}

int64_t AttentionProgram::active_rows(const AttentionStep& step) const {
  int64_t rows = 0;
  for (int d = 0; d < machine_.dsps; ++d)
    if (active(step, d)) rows += rows_of(step.first_query, d);
  return rows;
}

int64_t AttentionProgram::active_dsps(const AttentionStep& step) const {
  int64_t count = 0;
  for (int d = 0; d < machine_.dsps; ++d) count += active(step, d) ? 1 : 0;
  return count;
}

Block AttentionProgram::staged(const Block& area, const AttentionStep& step, int dsp) const {
  return area.part(dsp * tile_.queries, 0, rows_of(step.first_query, dsp), step.keys);
}

void AttentionProgram::run() {
  const int64_t wave = machine_.dsps * tile_.queries;
  const size_t lag = resident() ? 0 : 1;  // steps between the phases of a tile
  for (int64_t first_query = 0; first_query < problem_.sequence; first_query += wave) {
    begin_wave(first_query);
    load(0);
    for (size_t n = 0; n < steps_.size() + 2 * lag; ++n) {
      if (n + 1 < steps_.size()) load(n + 1);
      if (n >= 2 * lag) stage_probabilities(n - 2 * lag);
      if (n < steps_.size()) grad_probabilities(n);
      if (n >= lag && n - lag < steps_.size()) softmax_backward(n - lag);
      if (n >= 2 * lag) products(n - 2 * lag);
    }
    end_wave(first_query);
  }
  if (!resident()) return;
  const int64_t bytes = 2 * problem_.sequence * problem_.head_dim * kHalfBytes;
  cluster_.timeline().transfer(Channel::kDdr, bytes, std::max(part_k_free_, part_v_free_));
  move(machine_, sum_k_, grad_k_);
  move(machine_, sum_v_, grad_v_);
}

void AttentionProgram::begin_wave(int64_t first_query) {
  const int64_t wave_end = std::min(first_query + machine_.dsps * tile_.queries, problem_.sequence);
  steps_.clear();
  for (int64_t key = 0; key < wave_end; key += tile_.keys)
    steps_.push_back({.first_query = first_query, .key = key, .keys = std::min(tile_.keys, wave_end - key)});

  const int64_t d = problem_.head_dim, bytes = (wave_end - first_query) * d * kHalfBytes;
  Timeline& timeline = cluster_.timeline();
  const int64_t loaded = timeline.transfer(Channel::kDdr, 3 * bytes, wave_begin_);
  const int64_t copied = timeline.transfer(Channel::kOnChip, bytes, loaded);
  wave_begin_ =
      timeline.compute(vector_cycles(machine_, rows_of(first_query, 0), d, kRowSumOperations), copied);
  each_active(steps_.front(), [&](int dsp, Buffers& b, int64_t rows) {
    const int64_t query = first_query + dsp * tile_.queries;
    move(machine_, q_.part(query, 0, rows, d), b.q.part(0, 0, rows, d));
    move(machine_, grad_out_.part(query, 0, rows, d), b.grad_out.part(0, 0, rows, d));
    move(machine_, out_.part(query, 0, rows, d), b.grad_q.part(0, 0, rows, d));
    move(machine_, b.grad_out.part(0, 0, rows, d), b.left_grad_out.part(0, 0, rows, d));
    if (!cluster_.with_values()) return;
    for (int64_t row = 0; row < rows; ++row) {
      float sum = 0;
      for (int64_t i = 0; i < d; ++i) sum += b.grad_out.get(row, i) * b.grad_q.get(row, i);
      b.row_sums.set(row, 0, sum);
    }
    b.grad_q.fill(0);
  });
}

void AttentionProgram::end_wave(int64_t first_query) {
  const int64_t d = problem_.head_dim;
  const int64_t rows_in_wave = std::min(machine_.dsps * tile_.queries, problem_.sequence - first_query);
  wave_begin_ =
      cluster_.timeline().transfer(Channel::kDdr, rows_in_wave * d * kHalfBytes, steps_.back().done);
  each_active(steps_.front(), [&](int dsp, Buffers& b, int64_t rows) {
    move(machine_, b.grad_q.part(0, 0, rows, d), grad_q_.part(first_query + dsp * tile_.queries, 0, rows, d));
  });
}

void AttentionProgram::load(size_t n) {
  AttentionStep& step = steps_[n];
  const int64_t free = n >= ring() ? steps_[n - ring()].done : wave_done_;
  const int64_t d = problem_.head_dim, bytes = 2 * step.keys * d * kHalfBytes + tile_bytes(step);
  step.loaded = cluster_.timeline().transfer(Channel::kDdr, bytes, free);
  const size_t slot = n % ring();
  each_active(step, [&](int dsp, Buffers& b, int64_t rows) {
    const int64_t query = step.first_query + dsp * tile_.queries;
    move(machine_, k_.part(step.key, 0, step.keys, d), b.k[slot].part(0, 0, step.keys, d));
    move_transposed(machine_, v_.part(step.key, 0, step.keys, d), b.v[slot].part(0, 0, d, step.keys));
    move(machine_, probabilities_.part(query, step.key, rows, step.keys),
         b.p[slot].part(0, 0, rows, step.keys));
  });
}

void AttentionProgram::grad_probabilities(size_t n) {
  AttentionStep& step = steps_[n];
  Timeline& timeline = cluster_.timeline();
  const int64_t d = problem_.head_dim, rows = rows_of(step.first_query, 0);
  step.grad_probabilities =
      timeline.compute(multiply_cycles(machine_, rows, d, step.keys), std::max(step.loaded, tile_free_));
  if (!resident()) {
    tile_free_ = timeline.transfer(Channel::kDdr, tile_bytes(step), step.grad_probabilities);
    step.grad_probabilities =
        timeline.transfer(Channel::kDdr, tile_bytes(step), std::max(tile_free_, read_free_[n % 2]));
  }
  each_active(step, [&](int dsp, Buffers& b, int64_t dsp_rows) {
    const Block gp = b.tile.part(0, 0, dsp_rows, step.keys);
    if (cluster_.with_values()) {
      gp.fill(0);
      multiply(b.left_grad_out.part(0, 0, dsp_rows, d), b.v[n % ring()].part(0, 0, d, step.keys), gp);
    }
    if (resident()) return;
    move(machine_, gp, staged(staged_gp_, step, dsp));
    move(machine_, staged(staged_gp_, step, dsp), b.read[n % 2].part(0, 0, dsp_rows, step.keys));
  });
}

void AttentionProgram::softmax_backward(size_t n) {
  AttentionStep& step = steps_[n];
  Timeline& timeline = cluster_.timeline();
  const int64_t rows = rows_of(step.first_query, 0);
  step.grad_scores =
      timeline.compute(vector_cycles(machine_, rows, step.keys, kSoftmaxOperations), step.grad_probabilities);
  if (!resident()) {
    read_free_[n % 2] = timeline.transfer(Channel::kDdr, tile_bytes(step), step.grad_scores);
    const int64_t gs_free = n >= 2 ? steps_[n - 2].done : 0;
    step.grad_scores =
        timeline.transfer(Channel::kDdr, tile_bytes(step), std::max(read_free_[n % 2], gs_free));
  }
  each_active(step, [&](int dsp, Buffers& b, int64_t dsp_rows) {
    const Block gs = (resident() ? b.tile : b.read[n % 2]).part(0, 0, dsp_rows, step.keys);
    const Block& p = b.p[n % ring()];
    if (cluster_.with_values())
      for (int64_t row = 0; row < dsp_rows; ++row)
        for (int64_t key = 0; key < step.keys; ++key)
          gs.set(row, key, scale_ * p.get(row, key) * (gs.get(row, key) - b.row_sums.get(row, 0)));
    if (resident()) return;
    move(machine_, gs, staged(staged_gs_, step, dsp));
    move(machine_, staged(staged_gs_, step, dsp), b.gs[n % 2].part(0, 0, dsp_rows, step.keys));
  });
}

void AttentionProgram::stage_probabilities(size_t n) {
  const AttentionStep& step = steps_[n];
  probabilities_staged_ = cluster_.timeline().transfer(
      Channel::kOnChip, tile_bytes(step), std::max(step.loaded, n > 0 ? steps_[n - 1].done : wave_done_));
  each_active(step, [&](int, Buffers& b, int64_t rows) {
    move_transposed(machine_, b.p[n % ring()].part(0, 0, rows, step.keys),
                    b.left_transposed.part(0, 0, step.keys, rows));
  });
}

void AttentionProgram::products(size_t n) {
  AttentionStep& step = steps_[n];
  Timeline& timeline = cluster_.timeline();
  const int64_t d = problem_.head_dim, rows = rows_of(step.first_query, 0);
  const int64_t key_product = multiply_cycles(machine_, step.keys, rows, d);

  const int64_t left_free = n > 0 ? steps_[n - 1].done : wave_done_;
  const int64_t scores =
      timeline.transfer(Channel::kOnChip, tile_bytes(step), std::max(step.grad_scores, left_free));
  const int64_t gv = timeline.compute(key_product, std::max(probabilities_staged_, part_v_free_));
  const int64_t transposed = timeline.transfer(Channel::kOnChip, tile_bytes(step), std::max(gv, scores));
  timeline.compute(multiply_cycles(machine_, rows, step.keys, d), scores);
  step.done = timeline.compute(key_product, std::max(transposed, part_k_free_));

  each_active(step, [&](int, Buffers& b, int64_t dsp_rows) {
    const Block gs = (resident() ? b.tile : b.gs[n % 2]).part(0, 0, dsp_rows, step.keys);
    const Block left = b.left_scores.part(0, 0, dsp_rows, step.keys);
    const Block left_transposed = b.left_transposed.part(0, 0, step.keys, dsp_rows);
    const Block part_v = b.part_v.part(0, 0, step.keys, d), part_k = b.part_k.part(0, 0, step.keys, d);
    move(machine_, gs, left);
    if (cluster_.with_values()) {
      part_v.fill(0);
      multiply(left_transposed, b.grad_out.part(0, 0, dsp_rows, d), part_v);
      multiply(left, b.k[n % ring()].part(0, 0, step.keys, d), b.grad_q.part(0, 0, dsp_rows, d));
    }
    move_transposed(machine_, gs, left_transposed);
    if (cluster_.with_values()) {
      part_k.fill(0);
      multiply(left_transposed, b.q.part(0, 0, dsp_rows, d), part_k);
    }
  });
  part_v_free_ = reduce(step, &Buffers::part_v, resident() ? sum_v_ : grad_v_, gv, sum_v_free_);
  part_k_free_ = reduce(step, &Buffers::part_k, resident() ? sum_k_ : grad_k_, step.done, sum_k_free_);
}

int64_t AttentionProgram::reduce(const AttentionStep& step, Block Buffers::*part, const Block& sum,
                                 int64_t at, int64_t& sum_free) {
  const int64_t d = problem_.head_dim, round_trip = 2 * step.keys * d * kHalfBytes;
  Timeline& timeline = cluster_.timeline();
  const Block target = sum.part(step.key, 0, step.keys, d);
  each_active(step, [&](int, Buffers& b, int64_t) {
    if (!cluster_.with_values()) return;
    for (int64_t key = 0; key < step.keys; ++key)
      for (int64_t i = 0; i < d; ++i) target.set(key, i, target.get(key, i) + (b.*part).get(key, i));
  });
  const int64_t parts = active_dsps(step) * round_trip;
  if (staging_ == Staging::kDdrEachPart) return timeline.transfer(Channel::kDdr, parts, at);
  const int64_t summed = timeline.transfer(Channel::kOnChip, parts, std::max(at, sum_free));
  if (staging_ == Staging::kDdr) sum_free = timeline.transfer(Channel::kDdr, round_trip, summed);
  return summed;
}

}  // namespace trainer::dsp
