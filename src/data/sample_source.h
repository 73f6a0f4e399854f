// What a training or evaluation loop reads: numbered samples of one fixed length.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/label.h"
#include "data/indexed_dataset.h"

namespace trainer {

// How tokens become a sample. None of it changes which tokens a sample holds, nor their order.
//
// A document begins where tokens of another sequence of the dataset follow in a sample, and after every
// `eod`. Both mean the same place in a dataset whose documents end with EOD.
struct SampleOptions {
  int64_t vocab_size = kAnyVocabulary;  // ids are checked against it when they are read
  std::optional<int32_t> eod;           // the id that ends documents
  bool eod_mask_loss = false;           // no loss where the input is EOD
  bool reset_position_ids = false;      // positions restart with every document
  bool document_masking = false;        // report document starts, so that attention can stay inside documents
  bool ignore_cross_document_labels = false;  // no loss for predicting the first token of the next document
};

// One sample. A sample that runs out of data is padded with token 0 and ignored labels; padding is marked by
// its place and not by an id, so a real token keeps its loss whatever its id.
struct Sample {
  std::vector<int32_t> tokens;           // [sequence]
  std::vector<int32_t> labels;           // [sequence], the token after each, or kIgnoredLabel
  std::vector<int32_t> positions;        // [sequence]
  std::vector<int32_t> document_starts;  // where documents after the first begin; only with document_masking
  int64_t valid_tokens = 0;              // labels that count
};

// Immutable; every method may be called from several threads at once. Indices run over [0, size()).
class SampleSource {
 public:
  virtual ~SampleSource() = default;
  virtual int64_t size() const = 0;
  virtual int64_t sequence_length() const = 0;
  // Overwrites `sample`, reusing its storage. Throws InputError naming file and place for a damaged token.
  virtual void fetch(int64_t index, Sample& sample) const = 0;
  // Sample::valid_tokens, without reading tokens where the options allow.
  virtual int64_t valid_tokens(int64_t index) const = 0;
  // Hash of all that decides which places of which data come in which order. A changed seed, sequence length,
  // split or blend changes it, and so does a changed number of samples if, and only if, it changes the order.
  // File names, token values and sample options do not enter.
  virtual uint64_t fingerprint() const = 0;
};

}  // namespace trainer
