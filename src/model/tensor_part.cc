#include "model/tensor_part.h"

#include <algorithm>

#include "base/error.h"

namespace trainer {

std::vector<HeldPiece> held_pieces(const ParameterSpec& parameter, int64_t begin, int64_t count) {
  std::vector<HeldPiece> pieces;
  if (count <= 0) return pieces;
  if (parameter.held.empty()) return {{.begin = begin, .offset = begin, .length = count}};
  const int64_t width = parameter.shape.size() > 1 ? parameter.shape[1] : 1;
  int64_t first = 0;  // held elements before the rectangle
  for (const Rectangle& r : parameter.held) {
    int64_t at = std::max(begin, first) - first;
    const int64_t end = std::min(begin + count, first + r.rows * r.columns) - first;
    const auto add = [&](int64_t length, int64_t runs) {
      pieces.push_back({.begin = (r.row + at / r.columns) * width + r.column + at % r.columns,
                        .offset = first + at,
                        .length = length,
                        .runs = runs,
                        .stride = runs > 1 ? width : 0});
      at += length * runs;
    };
    if (at < end && r.columns == width) {
      add(end - at, 1);
    } else if (at < end) {
      // The rest of a row, whole rows, the beginning of one.
      if (at % r.columns != 0) add(std::min(end - at, r.columns - at % r.columns), 1);
      if (const int64_t rows = (end - at) / r.columns; rows > 0) add(r.columns, rows);
      if (at < end) add(end - at, 1);
    }
    first += r.rows * r.columns;
  }
  return pieces;
}

void check_parts(const ModelConfig& config, int64_t size) {
  if (size == 1) return;
  struct Divided {
    const char* what;
    int64_t value;
  };
  for (const Divided& d : {Divided{"attention heads (model.num_attention_heads)", config.num_attention_heads},
                           Divided{"key/value heads (model.num_query_groups)", config.num_query_groups},
                           Divided{"feed-forward channels (model.ffn_hidden_size)", config.ffn_hidden_size}})
    if (d.value % size != 0)
      input_error(
          "key 'parallel.tensor_parallel_size': the model's {} {} cannot be divided by {}; choose a size "
          "that "
          "divides them",
          d.value, d.what, size);
  if (config.vocabulary_size < size)
    input_error(
        "key 'parallel.tensor_parallel_size': a vocabulary of {} (model.vocabulary_size) cannot be cut "
        "into {} parts",
        config.vocabulary_size, size);
}

ModelConfig part_of(const ModelConfig& config, const TensorPart& part) {
  ModelConfig own = config;
  own.source = nullptr;
  own.num_attention_heads /= part.size;
  own.num_query_groups /= part.size;
  own.ffn_hidden_size /= part.size;
  return own;
}

VocabularyRange vocabulary_range(int64_t vocabulary, const TensorPart& part) {
  const auto begin = [&](int64_t rank) {
    return vocabulary / part.size * rank + std::min(rank, vocabulary % part.size);
  };
  return {begin(part.rank), begin(part.rank + 1) - begin(part.rank), begin(1)};
}

ParameterSpec cut_rows(ParameterSpec spec, const TensorPart& part, const std::vector<int64_t>& heights) {
  if (part.size == 1) return spec;
  const int64_t columns = spec.shape.size() > 1 ? spec.shape[1] : 1;
  int64_t top = 0;
  for (const int64_t height : heights.empty() ? std::vector{spec.shape[0]} : heights) {
    const int64_t rows = height / part.size;
    spec.held.push_back({.row = top + part.rank * rows, .rows = rows, .column = 0, .columns = columns});
    top += height;
  }
  return spec;
}

ParameterSpec cut_columns(ParameterSpec spec, const TensorPart& part) {
  if (part.size == 1) return spec;
  const int64_t columns = spec.shape[1] / part.size;
  spec.held = {{.row = 0, .rows = spec.shape[0], .column = part.rank * columns, .columns = columns}};
  return spec;
}

ParameterSpec cut_words(ParameterSpec spec, const TensorPart& part) {
  if (part.size == 1) return spec;
  const VocabularyRange range = vocabulary_range(spec.shape[0], part);
  spec.held = {{.row = range.first, .rows = range.count, .column = 0, .columns = spec.shape[1]}};
  return spec;
}

TensorLink::TensorLink(const LayerCall& call, const TensorPart& part, int64_t hidden)
    : part_(part),
      group_(part.size > 1 ? call.tensor : nullptr),
      hidden_(hidden),
      resident_(resident_tokens(call.batch.count(), part)),
      tokens_(call.batch.count()) {
  require(part.size == 1 || (group_ && group_->size() == part.size && group_->rank() == part.rank),
          "a layer cut over {} ranks is called without its group", part.size);
  require(!part.sequence || tokens_ % part.size == 0, "{} tokens cannot be cut over {} ranks", tokens_,
          part.size);
}

void TensorLink::gather(Ref all) const {
  if (sequence()) group_->all_gather(all.data, static_cast<size_t>(resident_ * hidden_) * size_of(all.dtype));
}

void TensorLink::sum(Ref all) const {
  if (sequence())
    group_->reduce_scatter(all, resident_ * hidden_);
  else if (group_)
    group_->all_reduce(all, tokens_ * hidden_);
}

void TensorLink::sum_all(float* values, int64_t count) const {
  if (group_ && count > 0) group_->all_reduce(ref(values), count);
}

TensorExchange ExchangeCount::gather() const {
  if (!part_.sequence) return {};
  return {1, bytes_ / part_.size * (part_.size - 1)};
}

TensorExchange ExchangeCount::sum() const {
  if (part_.size == 1) return {};
  const int64_t half = bytes_ / part_.size * (part_.size - 1);
  return {1, part_.sequence ? half : 2 * half};
}

TensorExchange ExchangeCount::sum_all(int64_t floats) const {
  if (part_.size == 1 || floats == 0) return {};
  return {1, 2 * floats * 4 * (part_.size - 1) / part_.size};
}

TensorExchange ExchangeCount::all_gather(int64_t bytes) const {
  if (part_.size == 1) return {};
  return {1, bytes * (part_.size - 1)};
}

}  // namespace trainer
