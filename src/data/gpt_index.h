// The order of samples: which sequences of an indexed dataset, shuffled how, cut where. Equal, number for
// number, to what Megatron-LM builds from the same data, seed and sizes.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/random_state.h"

namespace trainer {

enum class Split { kTrain, kValid, kTest };
const char* split_name(Split split);

// Begin and end of each split as fractions of the dataset; a split of no width is absent.
struct Fractions {
  double begin = 0, end = 0;
};
using SplitMatrix = std::array<std::optional<Fractions>, 3>;

// "969,30,1": weights of train, validation and test; fewer than three are filled up with 0. Throws
// InputError.
SplitMatrix parse_split(const std::string& text);

// Sequences [begin, end) of an indexed dataset.
struct SequenceRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};
// Bounds are rounded to the nearest sequence, halves to the even one. An absent split is empty.
SequenceRange split_range(const SplitMatrix& matrix, Split split, int64_t sequences);

// How often the data is gone through. When only a small part of the last epoch is needed it is shuffled
// apart, so that no sample of it comes before every sequence was seen as often.
struct EpochPlan {
  int64_t epochs = 1;
  bool separate_final = false;
  int64_t samples_before_final = 0;  // samples of all epochs but the last; 0 with one epoch
};
// `tokens` of one epoch, at least 1; `extra` is 1 when samples hold a token more than they have inputs.
EpochPlan plan_epochs(int64_t tokens, int64_t sequence_length, int64_t extra,
                      std::optional<int64_t> num_samples);

// Samples in `tokens` of all epochs together. The last partial one counts unless `drop_last`, in float32 as
// Megatron-LM does, which is off by some samples from 2^24 tokens on.
int64_t sample_count(int64_t tokens, int64_t sequence_length, int64_t extra, bool drop_last);

// Sequence ids in the order in which they are cut into samples. Throws InputError past 2^31 - 1 sequences.
std::vector<int32_t> build_document_index(SequenceRange range, const EpochPlan& plan, RandomState& random);

// [count + 1, 2], flat: position in the document index and token offset where each sample begins. A sample
// ends `extra` tokens behind the beginning of the next. `lengths` are those of the sequences from `first` on.
template <class T>
std::vector<T> build_sample_index(std::span<const int32_t> lengths, int64_t first,
                                  std::span<const int32_t> document_index, int64_t sequence_length,
                                  int64_t extra, int64_t count);

// A permutation of the samples that keeps [0, separate) and [separate, count) apart.
template <class T>
std::vector<T> build_shuffle_index(int64_t separate, int64_t count, RandomState& random);

}  // namespace trainer
