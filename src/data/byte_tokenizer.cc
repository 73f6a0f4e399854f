#include "data/byte_tokenizer.h"

#include "base/error.h"

namespace trainer {
namespace {
constexpr std::string_view kEodText = "<|endoftext|>";
}

ByteTokenizer::ByteTokenizer(int32_t eod) : eod_(eod) {
  if (eod < 0 || eod > 256)
    input_error(
        "byte tokenizer: end-of-document token {} is not in 0..256; 256 keeps every byte value usable", eod);
  for (int value = 0; value < 256; ++value) values_.push_back(static_cast<char>(value));
}

std::vector<int32_t> ByteTokenizer::encode(std::string_view text, EncodeOptions options) const {
  std::vector<int32_t> tokens;
  tokens.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (options.allow_special && text[i] == kEodText[0] && text.substr(i).starts_with(kEodText)) {
      tokens.push_back(eod_);
      i += kEodText.size() - 1;
      continue;
    }
    tokens.push_back(static_cast<uint8_t>(text[i]));
    if (tokens.back() == eod_)
      input_error("byte {} at offset {} is also the end-of-document token; use the end-of-document token 256",
                  eod_, i);
  }
  return tokens;
}

std::optional<std::string_view> ByteTokenizer::bytes(int32_t token) const {
  if (token < 0 || token >= vocabulary_size())
    input_error("token {} is outside the byte vocabulary of {}", token, vocabulary_size());
  if (token == eod_) return std::nullopt;
  return std::string_view(values_).substr(static_cast<size_t>(token), 1);
}

std::optional<std::string_view> ByteTokenizer::special(int32_t token) const {
  if (token != eod_) return std::nullopt;
  return kEodText;
}

}  // namespace trainer
