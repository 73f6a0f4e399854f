// The classifier: logits, softmax, loss and all gradients, a chunk of tokens at a time, so that only the
// softmax of one chunk exists. Its product leaves the softmax of each panel of words; a second pass joins the
// panels of a token and makes slopes of them.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "cpu/host_kernels.h"
#include "cpu/parallel.h"
#include "ops/classifier_chunk.h"
#include "ops/element.h"
#include "ops/softmax_part.h"
#include "ops/wrong_label.h"

namespace trainer {
namespace {

void check_labels(const Classifier& a) {
  const int64_t words = a.words();
  for (int64_t t = 0; t < a.tokens; ++t) {
    if (a.labels[t] == kIgnoredLabel || (a.labels[t] >= 0 && a.labels[t] < words)) continue;
    refuse_label(a.labels[t], t, words);
  }
}

// What the workspace holds of one chunk, in bytes from its beginning.
struct ChunkLayout {
  size_t parts = 0;                     // [ranks, tokens], where there are more ranks than one
  size_t largest, total, label_logits;  // fp32: [tokens, panels] twice, [tokens]
  size_t weights;                       // [tokens, stride]
  size_t end;
  int64_t panels, stride;

  ChunkLayout(const TileTable& tiles, DType dtype, int64_t tokens, int64_t vocabulary, int64_t ranks) {
    panels = (vocabulary + tiles.panel - 1) / tiles.panel;
    stride = (vocabulary + kStride - 1) / kStride * kStride;
    size_t used = 0;
    const auto take = [&](size_t bytes) {
      const size_t begin = used;
      used = (used + bytes + 63) / 64 * 64;
      return begin;
    };
    const auto count = static_cast<size_t>(tokens);
    if (ranks > 1) parts = take(count * static_cast<size_t>(ranks) * sizeof(SoftmaxPart));
    largest = take(count * static_cast<size_t>(panels) * sizeof(float));
    total = take(count * static_cast<size_t>(panels) * sizeof(float));
    label_logits = take(count * sizeof(float));
    weights = take(count * static_cast<size_t>(stride) * size_of(dtype));
    end = used;
  }
  // Rows begin on cache lines, in elements of either dtype.
  static constexpr int64_t kStride = 32;
};

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
  const auto bytes = [&](const TileTable& tiles, DType dtype) {
    return ChunkLayout(tiles, dtype, tokens, shape.vocabulary, shape.tensor_ranks).end;
  };
  const TileTable* const narrow = shape.dtype == DType::kBF16 ? products_.bf16_tiles : nullptr;
  return (narrow ? bytes(*narrow, DType::kBF16) : bytes(products_.tiles, DType::kF32)) +
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
  // A processor that multiplies bf16 gets the slopes in bf16.
  const TileTable& tiles = products_.tiles_for({a.weight, a.x});
  const DType dtype = &tiles == products_.bf16_tiles ? DType::kBF16 : DType::kF32;
  const int64_t chunk_tokens = classifier_chunk_tokens(a.largest_part());
  const int64_t chunks = (a.tokens + chunk_tokens - 1) / chunk_tokens;
  const int64_t most = (a.tokens + chunks - 1) / chunks;
  const int64_t ranks = a.part.group ? a.part.group->size() : 1;
  const ChunkLayout at(tiles, dtype, most, a.vocabulary, ranks);
  std::byte* const memory = workspace(at.end, "the classifier");
  const std::span<std::byte> rest = workspace_.subspan(at.end);
  auto* const parts = reinterpret_cast<SoftmaxPart*>(memory + at.parts);
  float* const largest = reinterpret_cast<float*>(memory + at.largest);
  float* const total = reinterpret_cast<float*>(memory + at.total);
  float* const label_logits = reinterpret_cast<float*>(memory + at.label_logits);
  // Of each token: exp(logit - largest of the panel), then the slopes, softmax - one at the label.
  const Ref weights{memory + at.weights, dtype};

  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t begin = a.tokens * chunk / chunks, count = a.tokens * (chunk + 1) / chunks - begin;
    const int32_t* labels = a.labels + begin;
    const ConstRef x = a.x.at(begin * a.hidden);
    const bool any =
        std::any_of(labels, labels + count, [](int32_t label) { return label != kIgnoredLabel; });
    double losses[kMostClassifierTokens] = {};
    if (any) {
      const RowSoftmax softmax{largest, total, labels, static_cast<int32_t>(a.part.first), label_logits};
      products_.run({.c = weights,
                     .c_stride = at.stride,
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
                     .k = a.hidden,
                     .softmax = &softmax},
                    rest);
      const auto own_label = [&](int64_t t) {
        const int64_t label = labels[t] - a.part.first;
        return label >= 0 && label < a.vocabulary ? label : -1;
      };
      const auto part_of = [&](int64_t t) {
        const float* const tops = largest + t * at.panels;
        const float top = tiles.largest(tops, at.panels);
        return SoftmaxPart{top, tiles.join_panels(tops, total + t * at.panels, at.panels, top),
                           own_label(t) < 0 ? 0.0 : label_logits[t]};
      };
      const auto set_slopes = [&](int64_t t, double top, double log_sum) {
        if (!a.dx) return;
        const Ref slope = weights.at(t * at.stride);
        tiles.scale_panels(slope, largest + t * at.panels, static_cast<float>(top),
                           static_cast<float>(std::exp(top - log_sum)), a.vocabulary);
        const int64_t label = own_label(t);
        if (label >= 0) store_element(slope, label, std::expm1(-losses[t]));
      };
      const auto clear_slopes = [&](int64_t t) {
        if (a.dx)
          std::memset(weights.at(t * at.stride).data, 0,
                      static_cast<size_t>(a.vocabulary) * size_of(weights.dtype));
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
        a.part.group->all_gather(parts, static_cast<size_t>(count) * sizeof(SoftmaxPart));
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
                   .a = weights,
                   .a_row = at.stride,
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
                   .a = weights,
                   .a_row = 1,
                   .a_k = at.stride,
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
