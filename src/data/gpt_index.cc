#include "data/gpt_index.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>

#include "base/error.h"

namespace trainer {

const char* split_name(Split split) {
  constexpr const char* kNames[] = {"train", "validation", "test"};
  return kNames[static_cast<int>(split)];
}

SplitMatrix parse_split(const std::string& text) {
  std::vector<double> weights;
  for (const char* place = text.c_str();;) {
    char* end = nullptr;
    const double weight = std::strtod(place, &end);
    while (*end == ' ') ++end;
    if (end == place || !std::isfinite(weight) || weight < 0 || (*end != ',' && *end != '\0'))
      input_error("split \"{}\": expected up to three weights such as \"969,30,1\"", text);
    weights.push_back(weight);
    if (*end == '\0') break;
    place = end + 1;
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (weights.size() > 3 || !(sum > 0) || !std::isfinite(sum))
    input_error("split \"{}\": expected up to three weights, not all of them 0", text);
  weights.resize(3);
  SplitMatrix matrix;
  double begin = 0;
  for (size_t i = 0; i < matrix.size(); ++i) {
    const double end = begin + weights[i] / sum;
    if (begin < end) matrix[i] = Fractions{begin, end};
    begin = end;
  }
  return matrix;
}

SequenceRange split_range(const SplitMatrix& matrix, Split split, int64_t sequences) {
  const auto& fractions = matrix[static_cast<size_t>(split)];
  if (!fractions) return {};
  // nearbyint rounds halves to even in the default rounding mode, as Python's round does.
  const auto bound = [&](double fraction) {
    return static_cast<int64_t>(std::nearbyint(fraction * static_cast<double>(sequences)));
  };
  // The fractions may add up to a trifle more than 1.
  return {bound(fractions->begin), std::min(bound(fractions->end), sequences)};
}

EpochPlan plan_epochs(int64_t tokens, int64_t sequence_length, int64_t extra,
                      std::optional<int64_t> num_samples) {
  EpochPlan plan;
  if (!num_samples) return plan;
  if (*num_samples < 1 || *num_samples > (int64_t{1} << 62) / sequence_length)
    input_error("{} samples of {} tokens cannot be built", *num_samples, sequence_length);
  const int64_t wanted = *num_samples * sequence_length + extra;
  plan.epochs = std::max<int64_t>(1, (wanted + tokens - 1) / tokens);
  if (plan.epochs == 1) return plan;
  plan.samples_before_final = ((plan.epochs - 1) * tokens - extra) / sequence_length;
  const int64_t from_final = *num_samples - plan.samples_before_final;
  const int64_t per_epoch = (tokens - extra) / sequence_length;
  plan.separate_final = from_final < static_cast<int64_t>(0.80 * static_cast<double>(per_epoch));
  return plan;
}

int64_t sample_count(int64_t tokens, int64_t sequence_length, int64_t extra, bool drop_last) {
  if (drop_last) return (tokens - extra) / sequence_length;
  return static_cast<int64_t>(
      std::ceil(static_cast<float>(tokens - extra) / static_cast<float>(sequence_length)));
}

std::vector<int32_t> build_document_index(SequenceRange range, const EpochPlan& plan, RandomState& random) {
  if (range.end > std::numeric_limits<int32_t>::max())
    input_error("a dataset of {} sequences cannot be shuffled: the order holds 32-bit sequence ids; split it",
                range.end);
  if (plan.epochs > (int64_t{1} << 36) / std::max<int64_t>(1, range.size()))
    input_error(
        "{} epochs of {} sequences are too many for the order to be kept in memory; ask for fewer samples, "
        "or "
        "add data",
        plan.epochs, range.size());
  const auto documents = static_cast<size_t>(range.size());
  std::vector<int32_t> index(documents * static_cast<size_t>(plan.epochs));
  for (size_t epoch = 0; epoch < static_cast<size_t>(plan.epochs); ++epoch)
    std::iota(index.begin() + static_cast<ptrdiff_t>(epoch * documents),
              index.begin() + static_cast<ptrdiff_t>((epoch + 1) * documents),
              static_cast<int32_t>(range.begin));
  const std::span<int32_t> all(index);
  if (plan.separate_final) {
    random.shuffle(all.first(all.size() - documents));
    random.shuffle(all.last(documents));
  } else {
    random.shuffle(all);
  }
  return index;
}

template <class T>
std::vector<T> build_sample_index(std::span<const int32_t> lengths, int64_t first,
                                  std::span<const int32_t> document_index, int64_t sequence_length,
                                  int64_t extra, int64_t count) {
  std::vector<T> marks;
  marks.reserve(2 * static_cast<size_t>(count + 1));
  const auto length = [&](size_t position) -> int64_t {
    return lengths[static_cast<size_t>(document_index[position] - first)];
  };
  size_t position = 0;
  int64_t offset = 0;
  marks.insert(marks.end(), {0, 0});
  for (int64_t sample = 0; sample < count; ++sample) {
    int64_t needed = sequence_length + extra;
    for (;;) {
      const int64_t remaining = length(position) - offset;
      if (needed <= remaining) {
        offset += needed - extra;
        break;
      }
      needed -= remaining;
      if (position + 1 == document_index.size()) {  // out of data: the sample is a partial one
        offset = length(position) - extra;
        break;
      }
      ++position;
      offset = 0;
    }
    marks.insert(marks.end(), {static_cast<T>(position), static_cast<T>(offset)});
  }
  return marks;
}

template <class T>
std::vector<T> build_shuffle_index(int64_t separate, int64_t count, RandomState& random) {
  std::vector<T> index(static_cast<size_t>(count));
  std::iota(index.begin(), index.end(), T{0});
  const std::span<T> all(index);
  random.shuffle(all.first(static_cast<size_t>(separate)));
  random.shuffle(all.subspan(static_cast<size_t>(separate)));
  return index;
}

template std::vector<int32_t> build_sample_index(std::span<const int32_t>, int64_t, std::span<const int32_t>,
                                                 int64_t, int64_t, int64_t);
template std::vector<int64_t> build_sample_index(std::span<const int32_t>, int64_t, std::span<const int32_t>,
                                                 int64_t, int64_t, int64_t);
template std::vector<uint32_t> build_shuffle_index(int64_t, int64_t, RandomState&);
template std::vector<int64_t> build_shuffle_index(int64_t, int64_t, RandomState&);

}  // namespace trainer
