// SentencePiece models (`tokenizer.model`), through the SentencePiece library.
#pragma once

#include <string>

#include "data/added_tokens.h"
#include "data/tokenizer.h"

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace trainer {

class SentencePieceTokenizer final : public Tokenizer {
 public:
  // `model` is the content of a model file, `name` heads messages. The end-of-document token is `eod`, else
  // the model's end-of-sentence piece. Throws InputError when the model cannot be read.
  SentencePieceTokenizer(const std::string& model, const std::string& name,
                         std::optional<int32_t> eod = std::nullopt);
  ~SentencePieceTokenizer() override;

  // `add_special` puts the beginning-of-sentence piece first. `allow_special` finds control pieces in the
  // text.
  std::vector<int32_t> encode(std::string_view text, EncodeOptions options = {}) const override;
  std::optional<std::string_view> bytes(int32_t token) const override;
  std::optional<std::string_view> special(int32_t token) const override;
  int32_t vocabulary_size() const override { return static_cast<int32_t>(pieces_.size()); }
  std::optional<int32_t> bos() const override { return bos_; }
  std::optional<int32_t> eos() const override { return eos_; }
  std::optional<int32_t> eod() const override { return eod_; }
  bool adds_space_prefix() const override { return adds_space_prefix_; }

 private:
  struct Piece {
    std::string text;  // its bytes; for a special piece its name
    enum Kind : uint8_t { kText, kSpecial, kUnknown } kind;
  };
  void encode_text(std::string_view text, bool continues, std::vector<int32_t>& tokens) const;

  std::string name_;
  std::unique_ptr<sentencepiece::SentencePieceProcessor> whole_,
      continued_;  // the second adds no space prefix
  std::vector<Piece> pieces_;
  AddedTokenFinder controls_;
  std::optional<int32_t> bos_, eos_, eod_;
  bool adds_space_prefix_ = false;
  bool joins_white_space_ = false;  // runs of spaces become one, those at the ends are dropped
};

}  // namespace trainer
