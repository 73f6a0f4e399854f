// Tokenizers: text to token ids and back. `load_tokenizer` reads the ones that models are published with.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trainer {

struct EncodeOptions {
  // Read special tokens written out in the text (`<|endoftext|>`, `</s>`) as those tokens. Off, such text is
  // ordinary text: documents must not be able to speak for the program.
  bool allow_special = false;
  // Add what the tokenizer puts around a sequence (a beginning-of-sequence token, as a rule).
  bool add_special = false;
  // The text goes on where earlier text of the same document was cut (see `document_cut`): no prefix is
  // added.
  bool continues = false;
};

// Immutable after construction; every method may be called by many threads at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Throws InputError when `text` is not UTF-8 (where the tokenizer needs it) or holds what the vocabulary
  // cannot say.
  virtual std::vector<int32_t> encode(std::string_view text, EncodeOptions options = {}) const = 0;

  // The bytes that `token` stands for inside a text. nullopt: none can be named (special and unknown tokens,
  // ids without an entry). Throws InputError when `token` is not in [0, vocabulary_size).
  virtual std::optional<std::string_view> bytes(int32_t token) const = 0;

  // The text of a special token as it is written ("</s>"); nullopt for every other token.
  virtual std::optional<std::string_view> special(int32_t token) const = 0;

  // Largest id + 1.
  virtual int32_t vocabulary_size() const = 0;
  virtual std::optional<int32_t> bos() const = 0;
  virtual std::optional<int32_t> eos() const = 0;
  // The token put after each document of a dataset.
  virtual std::optional<int32_t> eod() const = 0;

  // Whether `encode` puts a space before a document's first character; `decode` takes it away again.
  virtual bool adds_space_prefix() const { return false; }

  // The raw bytes of a document's tokens. `continues`: the tokens begin inside a document. Special tokens are
  // left out unless `keep_special`; other tokens without bytes become U+FFFD. Throws InputError for ids out
  // of range.
  std::string decode_bytes(std::span<const int32_t> tokens, bool continues = false,
                           bool keep_special = false) const;

  // The same for display: ill-formed UTF-8 becomes U+FFFD.
  std::string decode(std::span<const int32_t> tokens, bool continues = false,
                     bool keep_special = false) const;
};

struct TokenizerOptions {
  // Replaces the end-of-document token that the tokenizer's files name. For "byte" the default is 256.
  std::optional<int32_t> eod;
};

// `path` is the word "byte", a folder that holds `tokenizer.json` or `tokenizer.model`, or one of those
// files. In a folder with both, `tokenizer.model` is read when the JSON file says that it was made from one
// (`byte_fallback`). The end-of-document token of a tokenizer.json is its `<|endoftext|>` or
// `<|end_of_text|>`, else the `eos_token` that the tokenizer_config.json beside it names. Throws InputError
// that names the file and what is wrong or not supported.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path, const TokenizerOptions& options = {});

// Bytes of original text that `tokens` stand for, the count that bits per byte are taken over. Each `eod`
// token ends a document and counts nothing. Additive: a document may be counted window by window, the later
// windows with `continues`. A tokenizer that normalises text (NFC) keeps, and counts, the normalised bytes.
// Throws InputError when a token is an unknown-token, whose text cannot be known.
uint64_t count_text_bytes(const Tokenizer& tokenizer, std::span<const int32_t> tokens,
                          bool continues = false);

// Where a document of more than `limit` bytes is best cut: a position in (0, limit] of `text` (longer than
// `limit`) such that encoding the two parts apart, the second with `continues`, gives the tokens of the whole
// for every tokenizer whose pieces start at white space. That is before the last white space that follows an
// ASCII letter or digit; without one, before the last white space that follows something else; without that,
// after the last whole character.
size_t document_cut(std::string_view text, size_t limit);

}  // namespace trainer
