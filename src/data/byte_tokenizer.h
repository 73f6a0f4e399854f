// The tokenizer without a vocabulary: ids 0..255 are byte values.
#pragma once

#include "data/tokenizer.h"

namespace trainer {

class ByteTokenizer final : public Tokenizer {
 public:
  static constexpr int32_t kDefaultEod = 256;

  // `eod` is in [0, 256]. A value below 256 gives up that byte value: text that holds it cannot be told from
  // the end of a document, so `encode` refuses it.
  explicit ByteTokenizer(int32_t eod = kDefaultEod);

  std::vector<int32_t> encode(std::string_view text, EncodeOptions options = {}) const override;
  std::optional<std::string_view> bytes(int32_t token) const override;
  std::optional<std::string_view> special(int32_t token) const override;
  int32_t vocabulary_size() const override { return eod_ < 256 ? 256 : 257; }
  std::optional<int32_t> bos() const override { return std::nullopt; }
  std::optional<int32_t> eos() const override { return eod_; }
  std::optional<int32_t> eod() const override { return eod_; }

 private:
  int32_t eod_;
  std::string values_;  // byte i at position i
};

}  // namespace trainer
