// The classifier: logits, softmax, loss and all gradients, a chunk of tokens at a time, so that only the
// logits of one chunk exist.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "cpu/gemm_state.h"
#include "cpu/parallel.h"
#include "ops/classifier_chunk.h"

namespace trainer {
namespace {

constexpr int32_t kIgnored = -100;
size_t logit_floats(int64_t tokens, int64_t vocabulary) {
  return static_cast<size_t>(tokens * vocabulary + 15) / 16 * 16;
}

void check_labels(const Classifier& a) {
  for (int64_t t = 0; t < a.tokens; ++t) {
    if (a.labels[t] == kIgnored || (a.labels[t] >= 0 && a.labels[t] < a.vocabulary)) continue;
    input_error(
        "label {} of token {} is outside the vocabulary of {} (only {} marks a token without a label): the "
        "dataset does "
        "not belong to this model or its tokenizer",
        a.labels[t], t, a.vocabulary, kIgnored);
  }
}

}  // namespace

size_t HostKernels::classifier_workspace_bytes(const WorkspaceShape& shape) const {
  if (shape.vocabulary == 0) return 0;
  const int64_t tokens = std::min(shape.tokens, classifier_chunk_tokens(shape.vocabulary));
  return logit_floats(tokens, shape.vocabulary) * sizeof(float) +
         std::max({gemm_->bytes(tokens, shape.vocabulary, shape.hidden),
                   gemm_->bytes(tokens, shape.hidden, shape.vocabulary),
                   gemm_->bytes(shape.vocabulary, shape.hidden, tokens)});
}

ClassifierResult HostKernels::classifier(const Classifier& a) {
  check_labels(a);
  ClassifierResult result;
  if (a.tokens == 0) return result;
  const TileTable& tiles = gemm_->tiles;
  const int64_t chunk_tokens = classifier_chunk_tokens(a.vocabulary);
  const int64_t chunks = (a.tokens + chunk_tokens - 1) / chunk_tokens;
  const size_t floats = logit_floats((a.tokens + chunks - 1) / chunks, a.vocabulary);
  float* logits = reinterpret_cast<float*>(workspace(floats * sizeof(float), "the classifier"));
  const std::span<std::byte> rest = workspace_.subspan(floats * sizeof(float));
  // A processor that multiplies bf16 gets the slopes in bf16, each row in the first half of its logits.
  const bool narrow = gemm_->native && a.weight.dtype == DType::kBF16 && a.x.dtype == DType::kBF16;
  const Ref slopes{logits, narrow ? DType::kBF16 : DType::kF32};
  const int64_t slope_stride = narrow ? 2 * a.vocabulary : a.vocabulary;

  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t begin = a.tokens * chunk / chunks, count = a.tokens * (chunk + 1) / chunks - begin;
    const int32_t* labels = a.labels + begin;
    const ConstRef x = a.x.at(begin * a.hidden);
    const bool any = std::any_of(labels, labels + count, [](int32_t label) { return label != kIgnored; });
    double losses[kMostClassifierTokens] = {};
    if (any) {
      gemm_->run({.c = ref(logits),
                  .c_stride = a.vocabulary,
                  .a = x,
                  .a_row = a.hidden,
                  .a_k = 1,
                  .b = a.weight,
                  .b_column = a.hidden,
                  .b_k = 1,
                  .bias = {},
                  .add = false,
                  .m = count,
                  .n = a.vocabulary,
                  .k = a.hidden},
                 rest);
      parallel_ranges(threads_, count, 1, [&](int64_t first, int64_t last) {
        for (int64_t t = first; t < last; ++t) {
          const float* row = logits + t * a.vocabulary;
          const Ref slope = slopes.at(t * slope_stride);
          if (labels[t] == kIgnored) {
            if (a.dx) std::memset(slope.data, 0, static_cast<size_t>(a.vocabulary) * size_of(slope.dtype));
            continue;
          }
          const float top = tiles.largest(row, a.vocabulary), own = row[labels[t]];
          const double log_sum = top + std::log(tiles.sum_exponentials(row, top, a.vocabulary));
          losses[t] = log_sum - own;
          if (!a.dx) continue;
          const float shift = static_cast<float>(log_sum);
          tiles.exponentials(slope, row, shift, a.vocabulary);
          const float own_slope = static_cast<float>(std::expm1(-losses[t]));
          tiles.store_scaled(slope.at(labels[t]), &own_slope, 1.0f, 1);
        }
      });
    }
    for (int64_t t = 0; t < count; ++t) {
      result.loss_sum += losses[t];
      result.valid_tokens += labels[t] != kIgnored;
      if (a.token_losses) a.token_losses[begin + t] = static_cast<float>(losses[t]);
    }
    if (!a.dx) continue;
    const Ref dx = a.dx.at(begin * a.hidden);
    if (!any) {
      std::memset(dx.data, 0, static_cast<size_t>(count * a.hidden) * size_of(dx.dtype));
      continue;
    }
    gemm_->run({.c = dx,
                .c_stride = a.hidden,
                .a = slopes,
                .a_row = slope_stride,
                .a_k = 1,
                .b = a.weight,
                .b_column = 1,
                .b_k = a.hidden,
                .bias = {},
                .add = false,
                .m = count,
                .n = a.hidden,
                .k = a.vocabulary},
               rest);
    if (!a.dweight) continue;
    gemm_->run({.c = ref(a.dweight),
                .c_stride = a.hidden,
                .a = slopes,
                .a_row = 1,
                .a_k = slope_stride,
                .b = x,
                .b_column = 1,
                .b_k = a.hidden,
                .bias = {},
                .add = true,
                .m = a.vocabulary,
                .n = a.hidden,
                .k = count},
               rest);
  }
  return result;
}

}  // namespace trainer
