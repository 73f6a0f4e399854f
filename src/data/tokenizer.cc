#include "data/tokenizer.h"

#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "data/bpe_tokenizer.h"
#include "data/byte_tokenizer.h"
#include "data/sentencepiece_tokenizer.h"
#include "data/tokenizer_json.h"
#include "data/utf8.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;

bool is_ascii_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_ascii_word(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

// The file to load for what the user named.
fs::path tokenizer_file(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    if (!fs::exists(path, ignored))
      input_error(
          "tokenizer {}: no such file or folder; give a folder with tokenizer.json or tokenizer.model, one "
          "of those "
          "files, or the word \"byte\"",
          path);
    return path;
  }
  const fs::path json = fs::path(path) / "tokenizer.json", model = fs::path(path) / "tokenizer.model";
  const bool has_json = fs::exists(json, ignored), has_model = fs::exists(model, ignored);
  if (!has_json && !has_model)
    input_error("tokenizer {}: the folder holds neither tokenizer.json nor tokenizer.model", path);
  if (has_json && has_model) return made_from_sentencepiece(json) ? model : json;
  return has_json ? json : model;
}

}  // namespace

std::string Tokenizer::decode_bytes(std::span<const int32_t> tokens, bool continues,
                                    bool keep_special) const {
  std::string text;
  bool strip_space = adds_space_prefix() && !continues;
  for (const int32_t token : tokens) {
    const auto piece = bytes(token);
    if (piece) {
      text += strip_space && piece->starts_with(' ') ? piece->substr(1) : *piece;
      strip_space = false;
    } else if (const auto name = special(token)) {
      if (keep_special) text += *name;
    } else {
      text += "\xEF\xBF\xBD";
      strip_space = false;
    }
  }
  return text;
}

std::string Tokenizer::decode(std::span<const int32_t> tokens, bool continues, bool keep_special) const {
  return replace_invalid_utf8(decode_bytes(tokens, continues, keep_special));
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path, const TokenizerOptions& options) {
  if (path == "byte")
    return std::make_unique<ByteTokenizer>(options.eod.value_or(ByteTokenizer::kDefaultEod));
  const fs::path file = tokenizer_file(path);
  std::unique_ptr<Tokenizer> tokenizer;
  if (file.extension() == ".json")
    tokenizer = std::make_unique<BpeTokenizer>(read_tokenizer_json(file, options.eod));
  else
    tokenizer = std::make_unique<SentencePieceTokenizer>(read_file(file), file.string(), options.eod);
  if (options.eod && (*options.eod < 0 || *options.eod >= tokenizer->vocabulary_size()))
    input_error("tokenizer {}: end-of-document token {} is outside the vocabulary of {}", file.string(),
                *options.eod, tokenizer->vocabulary_size());
  return tokenizer;
}

uint64_t count_text_bytes(const Tokenizer& tokenizer, std::span<const int32_t> tokens, bool continues) {
  const auto eod = tokenizer.eod();
  uint64_t count = 0;
  bool strip_space = tokenizer.adds_space_prefix() && !continues;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (eod && tokens[i] == *eod) {
      strip_space = tokenizer.adds_space_prefix();
      continue;
    }
    const auto piece = tokenizer.bytes(tokens[i]);
    if (!piece) {
      if (tokenizer.special(tokens[i])) continue;
      input_error(
          "token {} at position {} stands for text that the vocabulary cannot say, so its bytes cannot be "
          "counted; "
          "use a tokenizer with byte fallback",
          tokens[i], i);
    }
    count += piece->size() - (strip_space && piece->starts_with(' ') ? 1 : 0);
    strip_space = false;
  }
  return count;
}

size_t document_cut(std::string_view text, size_t limit) {
  require(limit > 0 && text.size() > limit, "document_cut of {} bytes at {}", text.size(), limit);
  size_t after_other = 0;
  for (size_t position = limit; position > 0; --position) {
    if (!is_ascii_space(text[position])) continue;
    if (is_ascii_word(text[position - 1])) return position;
    if (after_other == 0 && !is_ascii_space(text[position - 1])) after_other = position;
  }
  if (after_other > 0) return after_other;
  size_t position = limit;
  while (position > 0 && (static_cast<uint8_t>(text[position]) & 0xC0) == 0x80) --position;
  return position > 0 ? position : limit;
}

}  // namespace trainer
