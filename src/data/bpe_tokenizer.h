// Byte-level byte-pair encoding, as GPT-2, Llama 3 and Qwen use it.
#pragma once

#include <unordered_map>

#include "data/added_tokens.h"
#include "data/bpe_merge.h"
#include "data/pre_tokenizer.h"
#include "data/tokenizer.h"

namespace trainer {

// What a tokenizer.json says, in bytes instead of the printable letters the file writes them with.
struct BpeDefinition {
  struct Token {
    std::string bytes;
    bool present = false;    // the id has an entry
    bool byte_level = true;  // its text is made of the byte letters, so that merging can reach it
  };
  struct Merge {
    int32_t left, right, joined;
  };

  std::string name;  // the file, for messages
  PreTokenizer pre_tokenizer;
  std::vector<Token> tokens = {};  // by id, added tokens included
  std::vector<Merge> merges = {};  // best first
  std::vector<AddedToken> added = {};
  bool ignore_merges = false;  // a piece that is a token is that token, whether or not merges lead to it
  bool nfc = false;            // texts are normalised to form C
  std::optional<int32_t> unknown = {}, bos = {}, eos = {}, eod = {};
  std::vector<int32_t> prefix = {}, suffix = {};  // around a sequence, when special tokens are to be added
};

class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(BpeDefinition definition);

  std::vector<int32_t> encode(std::string_view text, EncodeOptions options = {}) const override;
  std::optional<std::string_view> bytes(int32_t token) const override;
  std::optional<std::string_view> special(int32_t token) const override;
  int32_t vocabulary_size() const override { return static_cast<int32_t>(definition_.tokens.size()); }
  std::optional<int32_t> bos() const override { return definition_.bos; }
  std::optional<int32_t> eos() const override { return definition_.eos; }
  std::optional<int32_t> eod() const override { return definition_.eod; }
  bool adds_space_prefix() const override { return definition_.pre_tokenizer.adds_space_prefix(); }

  // The pieces that merges stay inside, special tokens counted as text; for tests and inspection.
  std::vector<std::string> pieces(std::string_view text) const;

 private:
  void encode_text(std::string_view text, bool continues, std::vector<int32_t>& tokens) const;
  void encode_piece(std::string_view piece, std::vector<int32_t>& tokens) const;
  void check_utf8(std::string_view text) const;

  BpeDefinition definition_;
  uint64_t instance_;                                       // no two tokenizers of a process share it
  std::unordered_map<std::string_view, int32_t> by_bytes_;  // views into definition_.tokens
  std::array<int32_t, 256> byte_tokens_;                    // -1: none
  MergeTable merges_;
  AddedTokenFinder raw_added_, normalized_added_;
  std::unordered_map<int32_t, std::string> special_;
};

}  // namespace trainer
