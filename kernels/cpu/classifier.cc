// The classifier: logits, softmax, loss and all gradients, a chunk of tokens at a time, so that only the
// logits of one chunk exist.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "cpu/host_kernels.h"
#include "cpu/parallel.h"
#include "ops/classifier_chunk.h"
#include "ops/softmax_part.h"
#include "ops/wrong_label.h"

namespace trainer {
namespace {

size_t logit_floats(int64_t tokens, int64_t vocabulary) {
  return static_cast<size_t>(tokens * vocabulary + 15) / 16 * 16;
}

void check_labels(const Classifier& a) {
  const int64_t words = a.words();
  for (int64_t t = 0; t < a.tokens; ++t) {
    if (a.labels[t] == kIgnoredLabel || (a.labels[t] >= 0 && a.labels[t] < words)) continue;
    refuse_label(a.labels[t], t, words);
  }
}

size_t part_bytes(int64_t tokens, int64_t ranks) {
  return static_cast<size_t>(tokens * ranks) * sizeof(SoftmaxPart);
}

// The parts of a token on all ranks, `stride` apart, as one softmax: the log of its sum, the label's logit.
struct SoftmaxTotal {
  double log_sum, target;
};
SoftmaxTotal join(const SoftmaxPart* parts, int64_t ranks, int64_t stride) {
  double largest = parts[0].largest, total = 0, target = 0;
  for (int64_t r = 1; r < ranks; ++r) largest = std::max(largest, parts[r * stride].largest);
  for (int64_t r = 0; r < ranks; ++r) {
    total += parts[r * stride].total * std::exp(parts[r * stride].largest - largest);
    target += parts[r * stride].target;
  }
  return {largest + std::log(total), target};
}

}  // namespace

size_t HostKernels::classifier_workspace_bytes(const WorkspaceShape& shape) const {
  if (shape.vocabulary == 0) return 0;
  const int64_t tokens = std::min(shape.tokens, classifier_chunk_tokens(shape.vocabulary));
  const size_t parts = shape.tensor_ranks > 1 ? (part_bytes(tokens, shape.tensor_ranks) + 63) / 64 * 64 : 0;
  return parts + logit_floats(tokens, shape.vocabulary) * sizeof(float) +
         std::max({products_.bytes(tokens, shape.vocabulary, shape.hidden),
                   products_.bytes(tokens, shape.hidden, shape.vocabulary),
                   products_.bytes(shape.vocabulary, shape.hidden, tokens)});
}

ClassifierResult HostKernels::classifier(const Classifier& a) {
  check_labels(a);
  ClassifierResult result;
  const auto clear_dweight = [&] {
    fill_zero(a.dweight, static_cast<size_t>(a.vocabulary * a.hidden) * sizeof(float));
  };
  bool accumulate = a.accumulate;
  if (a.tokens == 0) {
    if (a.dweight && !accumulate) clear_dweight();
    return result;
  }
  const TileTable& tiles = products_.tiles;
  const int64_t chunk_tokens = classifier_chunk_tokens(a.largest_part());
  const int64_t chunks = (a.tokens + chunk_tokens - 1) / chunk_tokens;
  const int64_t most = (a.tokens + chunks - 1) / chunks;
  const size_t floats = logit_floats(most, a.vocabulary);
  const int64_t ranks = a.part.group ? a.part.group->size() : 1;
  const size_t head = a.part.group ? (part_bytes(most, ranks) + 63) / 64 * 64 : 0;
  std::byte* const memory = workspace(head + floats * sizeof(float), "the classifier");
  auto* const parts = reinterpret_cast<SoftmaxPart*>(memory);  // [ranks, tokens of the chunk], with a group
  float* logits = reinterpret_cast<float*>(memory + head);
  const std::span<std::byte> rest = workspace_.subspan(head + floats * sizeof(float));
  // A processor that multiplies bf16 gets the slopes in bf16, each row in the first half of its logits.
  const bool narrow = &products_.tiles_for({a.weight, a.x}) == products_.bf16_tiles;
  const Ref slopes{logits, narrow ? DType::kBF16 : DType::kF32};
  const int64_t slope_stride = narrow ? 2 * a.vocabulary : a.vocabulary;

  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t begin = a.tokens * chunk / chunks, count = a.tokens * (chunk + 1) / chunks - begin;
    const int32_t* labels = a.labels + begin;
    const ConstRef x = a.x.at(begin * a.hidden);
    const bool any =
        std::any_of(labels, labels + count, [](int32_t label) { return label != kIgnoredLabel; });
    double losses[kMostClassifierTokens] = {};
    if (any) {
      products_.run({.c = ref(logits),
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
      // The logits of a token become exp(logit - largest).
      const auto part_of = [&](int64_t t) {
        float* const row = logits + t * a.vocabulary;
        const int64_t label = labels[t] - a.part.first;
        const double target = label >= 0 && label < a.vocabulary ? row[label] : 0.0;
        const float top = tiles.largest(row, a.vocabulary);
        return SoftmaxPart{top, tiles.exponentials(row, top, a.vocabulary), target};
      };
      const auto set_slopes = [&](int64_t t, double top, double log_sum) {
        if (!a.dx) return;
        const Ref slope = slopes.at(t * slope_stride);
        const int64_t label = labels[t] - a.part.first;
        tiles.scale(slope, logits + t * a.vocabulary, static_cast<float>(std::exp(top - log_sum)),
                    a.vocabulary);
        if (label < 0 || label >= a.vocabulary) return;
        const float own_slope = static_cast<float>(std::expm1(-losses[t]));
        tiles.scale(slope.at(label), &own_slope, 1.0f, 1);
      };
      const auto clear_slopes = [&](int64_t t) {
        if (a.dx)
          std::memset(slopes.at(t * slope_stride).data, 0,
                      static_cast<size_t>(a.vocabulary) * size_of(slopes.dtype));
      };
      const auto each_token = [&](auto&& valid, auto&& ignored) {
        parallel_ranges(threads_, count, 1, [&](int64_t first, int64_t last) {
          for (int64_t t = first; t < last; ++t) {
            if (labels[t] == kIgnoredLabel)
              ignored(t);
            else
              valid(t);
          }
        });
      };
      if (a.part.group) {
        SoftmaxPart* const own = parts + a.part.group->rank() * count;
        each_token([&](int64_t t) { own[t] = part_of(t); }, [&](int64_t t) { own[t] = {}; });
        a.part.group->all_gather(parts, part_bytes(count, 1));
        each_token(
            [&](int64_t t) {
              const SoftmaxTotal whole = join(parts + t, ranks, count);
              losses[t] = whole.log_sum - whole.target;
              set_slopes(t, own[t].largest, whole.log_sum);
            },
            clear_slopes);
      } else {
        each_token(
            [&](int64_t t) {
              const SoftmaxPart part = part_of(t);
              const double log_sum = part.largest + std::log(part.total);
              losses[t] = log_sum - part.target;
              set_slopes(t, part.largest, log_sum);
            },
            clear_slopes);
      }
    }
    for (int64_t t = 0; t < count; ++t) {
      result.loss_sum += losses[t];
      result.valid_tokens += labels[t] != kIgnoredLabel;
      if (a.token_losses) a.token_losses[begin + t] = static_cast<float>(losses[t]);
    }
    if (!a.dx) continue;
    const Ref dx = a.dx.at(begin * a.hidden);
    if (!any) {
      std::memset(dx.data, 0, static_cast<size_t>(count * a.hidden) * size_of(dx.dtype));
      continue;
    }
    products_.run({.c = dx,
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
    products_.run({.c = ref(a.dweight),
                   .c_stride = a.hidden,
                   .a = slopes,
                   .a_row = 1,
                   .a_k = slope_stride,
                   .b = x,
                   .b_column = 1,
                   .b_k = a.hidden,
                   .bias = {},
                   .add = accumulate,
                   .m = a.vocabulary,
                   .n = a.hidden,
                   .k = count},
                  rest);
    accumulate = true;
  }
  if (a.dx && a.dweight && !accumulate) clear_dweight();  // no label was valid
  return result;
}

}  // namespace trainer
