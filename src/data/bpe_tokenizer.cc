#include "data/bpe_tokenizer.h"

#include <atomic>

#include "base/error.h"
#include "base/hash.h"
#include "data/utf8.h"

namespace trainer {
namespace {

// The tokens of pieces met lately, one cache a thread: words repeat, so most pieces are never merged twice.
// Each piece has one slot it may be in.
class PieceCache {
 public:
  struct Slot {
    std::string piece;
    std::vector<int32_t> tokens;
  };
  static constexpr size_t kSlots = 1 << 15;
  static constexpr size_t kLongestPiece = 48;  // bytes; bounds the memory

  // The slot of `piece` for the tokenizer `instance`; it holds the piece when `slot.piece == piece`.
  static Slot& slot(uint64_t instance, std::string_view piece) {
    thread_local PieceCache cache;
    if (cache.instance_ != instance) {
      cache.slots_.assign(kSlots, Slot{});
      cache.instance_ = instance;
    }
    return cache.slots_[hash_string(piece) % kSlots];
  }

 private:
  uint64_t instance_ = 0;
  std::vector<Slot> slots_;
};

uint64_t next_instance() {
  static std::atomic<uint64_t> counter{0};
  return ++counter;
}

}  // namespace

BpeTokenizer::BpeTokenizer(BpeDefinition definition)
    : definition_(std::move(definition)), instance_(next_instance()), merges_(definition_.merges.size()) {
  byte_tokens_.fill(-1);
  for (const AddedToken& added : definition_.added) {
    if (added.special) special_[added.id] = added.content;
    AddedToken wanted = added;
    if (added.normalized && definition_.nfc) wanted.content = normalise_nfc(added.content);
    (added.normalized ? normalized_added_ : raw_added_).add(wanted);
  }
  for (size_t id = 0; id < definition_.tokens.size(); ++id) {
    const auto& token = definition_.tokens[id];
    if (!token.present || !token.byte_level) continue;
    by_bytes_[token.bytes] = static_cast<int32_t>(id);
    if (token.bytes.size() == 1)
      byte_tokens_[static_cast<uint8_t>(token.bytes[0])] = static_cast<int32_t>(id);
  }
  int32_t rank = 0;
  for (const auto& merge : definition_.merges) merges_.add(merge.left, merge.right, {rank++, merge.joined});
}

void BpeTokenizer::check_utf8(std::string_view text) const {
  if (const size_t bad = first_invalid_utf8(text); bad != std::string_view::npos)
    input_error("the text is not UTF-8: byte 0x{:02x} at offset {}", static_cast<uint8_t>(text[bad]), bad);
}

std::vector<int32_t> BpeTokenizer::encode(std::string_view text, EncodeOptions options) const {
  check_utf8(text);
  std::vector<int32_t> tokens;
  tokens.reserve(text.size() / 3 + 8);
  if (options.add_special) tokens = definition_.prefix;
  bool first = true;
  for (const auto& part : raw_added_.split(text, options.allow_special)) {
    if (part.token >= 0) {
      tokens.push_back(part.token);
    } else {
      const std::string normal = definition_.nfc ? normalise_nfc(part.text) : std::string();
      for (const auto& inner :
           normalized_added_.split(definition_.nfc ? normal : part.text, options.allow_special)) {
        if (inner.token >= 0)
          tokens.push_back(inner.token);
        else
          encode_text(inner.text, options.continues && first, tokens);
        first = false;
      }
    }
    first = false;
  }
  if (options.add_special) tokens.insert(tokens.end(), definition_.suffix.begin(), definition_.suffix.end());
  return tokens;
}

std::vector<std::string> BpeTokenizer::pieces(std::string_view text) const {
  check_utf8(text);
  const std::string normal = definition_.nfc ? normalise_nfc(text) : std::string(text);
  std::deque<std::string> storage;
  const auto views = definition_.pre_tokenizer.split(normal, false, storage);
  return {views.begin(), views.end()};
}

void BpeTokenizer::encode_text(std::string_view text, bool continues, std::vector<int32_t>& tokens) const {
  std::deque<std::string> storage;
  for (const std::string_view piece : definition_.pre_tokenizer.split(text, continues, storage)) {
    if (piece.size() > PieceCache::kLongestPiece) {
      encode_piece(piece, tokens);
      continue;
    }
    auto& slot = PieceCache::slot(instance_, piece);
    if (slot.piece != piece) {
      slot.piece.clear();  // so that a piece that cannot be encoded leaves nothing behind
      slot.tokens.clear();
      encode_piece(piece, slot.tokens);
      slot.piece = piece;
    }
    tokens.insert(tokens.end(), slot.tokens.begin(), slot.tokens.end());
  }
}

void BpeTokenizer::encode_piece(std::string_view piece, std::vector<int32_t>& tokens) const {
  if (definition_.ignore_merges) {
    if (const auto whole = by_bytes_.find(piece); whole != by_bytes_.end()) {
      tokens.push_back(whole->second);
      return;
    }
  }
  std::vector<int32_t> merged(piece.size());
  for (size_t i = 0; i < piece.size(); ++i) {
    const auto byte = static_cast<uint8_t>(piece[i]);
    merged[i] = byte_tokens_[byte] >= 0 ? byte_tokens_[byte] : definition_.unknown.value_or(-1);
    if (merged[i] < 0)
      input_error("tokenizer {}: its vocabulary has no token for the byte 0x{:02x} of the text",
                  definition_.name, byte);
  }
  merge_tokens(merges_, merged);
  tokens.insert(tokens.end(), merged.begin(), merged.end());
}

std::optional<std::string_view> BpeTokenizer::bytes(int32_t token) const {
  if (token < 0 || token >= vocabulary_size())
    input_error("token {} is outside the vocabulary of {} of tokenizer {}", token, vocabulary_size(),
                definition_.name);
  const auto& entry = definition_.tokens[static_cast<size_t>(token)];
  if (!entry.present || special_.contains(token) || token == definition_.unknown) return std::nullopt;
  return entry.bytes;
}

std::optional<std::string_view> BpeTokenizer::special(int32_t token) const {
  const auto found = special_.find(token);
  if (found == special_.end()) return std::nullopt;
  return found->second;
}

}  // namespace trainer
