// How a model is cut over the ranks of a tensor-parallel group.
#pragma once

#include "model/layer.h"
#include "model/scratch.h"

namespace trainer {

// Throws InputError naming the key when the model cannot be cut into `size` parts.
void check_parts(const ModelConfig& config, int64_t size);

// The shape of one rank's part: heads and feed-forward width divided, all else as it is.
ModelConfig part_of(const ModelConfig& config, const TensorPart& part);

// Words [first, first + count) belong to this rank; `most` is the largest count of any.
struct VocabularyRange {
  int64_t first = 0, count = 0, most = 0;
};
VocabularyRange vocabulary_range(int64_t vocabulary, const TensorPart& part);

// Tokens of the residual stream that this rank holds, of `tokens`.
inline int64_t resident_tokens(int64_t tokens, const TensorPart& part) {
  return part.sequence ? tokens / part.size : tokens;
}

// Rows (of a matrix [rows, columns], or elements of a vector) [r, r + rows / size); also of each of several
// matrices that stand on top of one another, `heights` giving their rows.
ParameterSpec cut_rows(ParameterSpec spec, const TensorPart& part, const std::vector<int64_t>& heights = {});
ParameterSpec cut_columns(ParameterSpec spec, const TensorPart& part);
// The rows of vocabulary_range.
ParameterSpec cut_words(ParameterSpec spec, const TensorPart& part);

// What the ranks of a group tell one another about activations [tokens, hidden] in a layer; without a group
// every call does nothing. `resident` activations are those between layers: this rank's tokens with
// TensorPart::sequence, else all.
class TensorLink {
 public:
  TensorLink(const LayerCall& call, const TensorPart& part, int64_t hidden);

  bool cut() const { return group_ != nullptr; }
  bool sequence() const { return group_ && part_.sequence; }
  int64_t resident() const { return resident_; }
  // This rank's tokens within a buffer of all tokens; the buffer itself without sequence parallelism.
  Ref own(Ref all) const { return sequence() ? all.at(part_.rank * resident_ * hidden_) : all; }
  // Fills `all` from the ranks' own tokens in it.
  void gather(Ref all) const;
  // Every rank's summand of all tokens becomes the sum: of the own tokens, or of all.
  void sum(Ref all) const;
  // [count] becomes the sum over the ranks, on each.
  void sum_all(float* values, int64_t count) const;
  // Adds a bias to its product on one rank only.
  bool adds_bias() const { return !group_ || part_.rank == 0; }

 private:
  const TensorPart part_;
  TensorGroup* group_;
  int64_t hidden_, resident_, tokens_;
};

// What a rank sends in the calls above, for the catalogue.
class ExchangeCount {
 public:
  ExchangeCount(const TensorPart& part, int64_t tokens, int64_t hidden, DType dtype)
      : part_(part), bytes_(tokens * hidden * static_cast<int64_t>(size_of(dtype))) {}
  TensorExchange gather() const;
  TensorExchange sum() const;
  TensorExchange sum_all(int64_t floats) const;
  TensorExchange all_gather(int64_t bytes_of_a_part) const;

 private:
  const TensorPart part_;
  const int64_t bytes_;
};

}  // namespace trainer
