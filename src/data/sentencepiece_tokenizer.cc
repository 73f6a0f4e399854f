#include "data/sentencepiece_tokenizer.h"

#include <sentencepiece_processor.h>

#include <charconv>

#include "base/error.h"
#include "data/utf8.h"

namespace trainer {
namespace {

using Processor = sentencepiece::SentencePieceProcessor;

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581 stands for a space inside pieces

std::unique_ptr<Processor> load(const std::string& model, const std::string& name) {
  auto processor = std::make_unique<Processor>();
  if (const auto status = processor->LoadFromSerializedProto(model); !status.ok())
    input_error("tokenizer {}: not a SentencePiece model: {}", name, status.ToString());
  return processor;
}

// A protocol buffer may be followed by more of its fields, which then replace the earlier values. These bytes
// are normalizer_spec (field 3, two bytes long) { add_dummy_prefix (field 3): false }.
std::string without_dummy_prefix(const std::string& model) {
  return model + std::string("\x1A\x02\x18\x00", 4);
}

std::string replace_space_marks(std::string_view piece) {
  std::string text;
  for (size_t i = 0; i < piece.size();) {
    const bool mark = piece.substr(i).starts_with(kSpaceMark);
    text += mark ? ' ' : piece[i];
    i += mark ? kSpaceMark.size() : 1;
  }
  return text;
}

// The byte of a piece that is written "<0x41>".
char byte_of(const std::string& piece, const std::string& name) {
  unsigned value = 256;
  if (piece.size() == 6) std::from_chars(piece.data() + 3, piece.data() + 5, value, 16);
  if (value > 255) input_error("tokenizer {}: the byte piece '{}' is not of the form <0x41>", name, piece);
  return static_cast<char>(value);
}

std::string joined_pieces(const Processor& processor, std::string_view text) {
  std::string joined;
  for (const auto& piece : processor.EncodeAsPieces(text)) joined += piece;
  return joined;
}

}  // namespace

SentencePieceTokenizer::SentencePieceTokenizer(const std::string& model, const std::string& name,
                                               std::optional<int32_t> eod)
    : name_(name), whole_(load(model, name)), continued_(load(without_dummy_prefix(model), name)) {
  for (int id = 0; id < whole_->GetPieceSize(); ++id) {
    const std::string& piece = whole_->IdToPiece(id);
    if (whole_->IsControl(id)) {
      pieces_.push_back({piece, Piece::kSpecial});
      controls_.add({.id = id, .content = piece, .special = true});
    } else if (whole_->IsUnknown(id)) {
      pieces_.push_back({piece, Piece::kUnknown});
    } else if (whole_->IsByte(id)) {
      pieces_.push_back({std::string(1, byte_of(piece, name)), Piece::kText});
    } else {
      pieces_.push_back({replace_space_marks(piece), Piece::kText});
    }
  }
  const auto role = [](int id) { return id >= 0 ? std::optional<int32_t>(id) : std::nullopt; };
  bos_ = role(whole_->bos_id());
  eos_ = role(whole_->eos_id());
  eod_ = eod ? eod : eos_;

  // How the model treats white space, asked of the library itself.
  const std::string alone = joined_pieces(*whole_, "a");
  if (alone.ends_with(kSpaceMark))
    input_error("tokenizer {}: a space mark after each word (treat_whitespace_as_suffix) is not supported",
                name);
  adds_space_prefix_ = alone.starts_with(kSpaceMark);
  joins_white_space_ = joined_pieces(*continued_, "a  a") == joined_pieces(*continued_, "a a");
}

SentencePieceTokenizer::~SentencePieceTokenizer() = default;

void SentencePieceTokenizer::encode_text(std::string_view text, bool continues,
                                         std::vector<int32_t>& tokens) const {
  // Where white space is joined, the space at the front of a continuation would be dropped; the prefix takes
  // its place.
  const bool prefixed = !continues || (joins_white_space_ && text.starts_with(' '));
  std::vector<int> ids;
  const auto status = (prefixed ? whole_ : continued_)->Encode(text, &ids);
  if (!status.ok()) input_error("tokenizer {}: {}", name_, status.ToString());
  tokens.insert(tokens.end(), ids.begin(), ids.end());
}

std::vector<int32_t> SentencePieceTokenizer::encode(std::string_view text, EncodeOptions options) const {
  if (const size_t bad = first_invalid_utf8(text); bad != std::string_view::npos)
    input_error("the text is not UTF-8: byte 0x{:02x} at offset {}", static_cast<uint8_t>(text[bad]), bad);
  std::vector<int32_t> tokens;
  if (options.add_special && bos_) tokens.push_back(*bos_);
  bool continues = options.continues;
  for (const auto& part : controls_.split(text, options.allow_special)) {
    if (part.token >= 0)
      tokens.push_back(part.token);
    else
      encode_text(part.text, std::exchange(continues, true), tokens);
  }
  return tokens;
}

std::optional<std::string_view> SentencePieceTokenizer::bytes(int32_t token) const {
  if (token < 0 || token >= vocabulary_size())
    input_error("token {} is outside the vocabulary of {} of tokenizer {}", token, vocabulary_size(), name_);
  const Piece& piece = pieces_[static_cast<size_t>(token)];
  if (piece.kind != Piece::kText) return std::nullopt;
  return piece.text;
}

std::optional<std::string_view> SentencePieceTokenizer::special(int32_t token) const {
  if (token < 0 || token >= vocabulary_size() || pieces_[static_cast<size_t>(token)].kind != Piece::kSpecial)
    return std::nullopt;
  return pieces_[static_cast<size_t>(token)].text;
}

}  // namespace trainer
