#include "data/indexed_dataset.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "base/error.h"
#include "base/hash.h"

namespace trainer {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian and read as it lies");

constexpr char kMagic[] = "MMIDIDX\0";  // nine bytes with the terminator
constexpr size_t kHeaderBytes = 34;

template <class T>
T load(const std::byte* base, int64_t index) {
  T value;
  std::memcpy(&value, base + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

// Calls `body` with a value of the C++ type that holds tokens of `type`.
template <class Body>
auto with_type(TokenType type, Body body) {
  switch (type) {
    case TokenType::kU8:
      return body(uint8_t{});
    case TokenType::kI8:
      return body(int8_t{});
    case TokenType::kI16:
      return body(int16_t{});
    case TokenType::kI32:
      return body(int32_t{});
    case TokenType::kI64:
      return body(int64_t{});
    case TokenType::kF64:
      return body(double{});
    case TokenType::kF32:
      return body(float{});
    case TokenType::kU16:
      break;
  }
  return body(uint16_t{});
}

template <class T>
bool is_token(T value, int64_t vocab_size) {
  if constexpr (std::is_floating_point_v<T>)
    return value >= 0 && static_cast<double>(value) < static_cast<double>(vocab_size) &&
           value == std::floor(value);
  else
    return static_cast<uint64_t>(value) < static_cast<uint64_t>(vocab_size);
}

// Copies tokens; the place of the first that is none comes back, or -1.
template <class T>
int64_t decode(const std::byte* from, std::span<int32_t> to, int64_t vocab_size) {
  bool good = true;
  for (size_t i = 0; i < to.size(); ++i) {
    const T value = load<T>(from, static_cast<int64_t>(i));
    const bool token = is_token(value, vocab_size);
    good &= token;
    to[i] = token ? static_cast<int32_t>(value) : 0;
  }
  if (good) return -1;
  int64_t place = 0;
  while (is_token(load<T>(from, place), vocab_size)) ++place;
  return place;
}

std::string without_extension(const std::string& prefix) {
  for (const char* extension : {".bin", ".idx"})
    if (prefix.ends_with(extension)) return prefix.substr(0, prefix.size() - 4);
  return prefix;
}

}  // namespace

int64_t token_bytes(TokenType type) {
  return with_type(type, [](auto value) { return static_cast<int64_t>(sizeof value); });
}

const char* token_type_name(TokenType type) {
  constexpr const char* kNames[] = {"u8", "i8", "i16", "i32", "i64", "f64", "f32", "u16"};
  return kNames[static_cast<int>(type) - 1];
}

TokenType writer_token_type(int64_t vocab_size) {
  return vocab_size < 65500 ? TokenType::kU16 : TokenType::kI32;
}

IndexedDataset::IndexedDataset(const std::string& prefix)
    : prefix_(without_extension(prefix)), index_(prefix_ + ".idx"), data_(prefix_ + ".bin") {
  const std::string file = prefix_ + ".idx";
  const std::byte* base = index_.bytes().data();
  const uint64_t size = index_.size();
  if (size < sizeof kMagic || std::memcmp(base, kMagic, sizeof kMagic) != 0)
    input_error("{}: not a dataset index: it does not begin with MMIDIDX", file);
  if (size < kHeaderBytes) input_error("{}: truncated: {} bytes, less than its header", file, size);
  const auto version = load<uint64_t>(base + 9, 0);
  if (version != 1) input_error("{}: index version {}, but only version 1 can be read", file, version);
  const auto code = load<uint8_t>(base + 17, 0);
  if (code < 1 || code > 8) input_error("{}: unknown token type code {} (1 to 8 are known)", file, code);
  type_ = static_cast<TokenType>(code);

  const auto sequences = load<uint64_t>(base + 18, 0), entries = load<uint64_t>(base + 26, 0);
  // Bounded before they are multiplied, so that a damaged count cannot wrap around.
  const bool bounded = sequences <= size / 12 && entries <= size / 8;
  const uint64_t needed = bounded ? kHeaderBytes + 12 * sequences + 8 * entries : 0;
  if (!bounded || size < needed)
    input_error(
        "{}: truncated or damaged: {} bytes, too short for the {} sequences and {} document entries that "
        "its header announces",
        file, size, sequences, entries);
  const uint64_t tail = size - needed;
  if (tail != 0 && tail != sequences)
    input_error("{}: damaged: {} bytes after the document index (0 expected, or {} modes)", file, tail,
                sequences);
  if (entries == 0) input_error("{}: damaged: it has no document index", file);

  sequences_ = static_cast<int64_t>(sequences);
  documents_ = static_cast<int64_t>(entries) - 1;
  lengths_ = base + kHeaderBytes;
  offsets_ = lengths_ + 4 * sequences;
  document_index_ = offsets_ + 8 * sequences;
  if (tail != 0) modes_ = document_index_ + 8 * entries;
  check_arrays();
}

void IndexedDataset::check_arrays() {
  const std::string file = prefix_ + ".idx";
  // 64-bit throughout; the size of the .bin bounds every sum before it is used.
  const int64_t width = token_bytes(type_), available = static_cast<int64_t>(data_.size()) / width;
  for (int64_t i = 0; i < sequences_; ++i) {
    const int64_t count = load<int32_t>(lengths_, i), offset = load<int64_t>(offsets_, i);
    if (count < 0) input_error("{}: damaged: sequence {} has length {}", file, i, count);
    if (offset != tokens_ * width)
      input_error("{}: damaged: sequence {} begins at byte {}, but the sequences before it end at byte {}",
                  file, i, offset, tokens_ * width);
    if (count > available - tokens_)
      input_error(
          "{}.bin: {} bytes, too short for sequence {} of {} ({} tokens of type {} from byte {}); one of the "
          "two files is truncated or belongs to another dataset",
          prefix_, data_.size(), i, file, count, token_type_name(type_), offset);
    tokens_ += count;
  }
  int64_t before = 0;
  for (int64_t i = 0; i <= documents_; ++i) {
    const auto entry = load<int64_t>(document_index_, i);
    if (entry < before || entry > sequences_ || (i == 0 && entry != 0))
      input_error("{}: damaged: document index entry {} is {} (it starts at 0, never falls and ends at {})",
                  file, i, entry, sequences_);
    before = entry;
  }
  if (before != sequences_)
    input_error("{}: damaged: the document index ends at {}, but there are {} sequences", file, before,
                sequences_);
  if (static_cast<int64_t>(data_.size()) != tokens_ * width)
    input_error(
        "{}.bin: {} bytes, but {} describes {} tokens of type {}, {} bytes; one of the two is truncated or "
        "belongs to another dataset",
        prefix_, data_.size(), file, tokens_, token_type_name(type_), tokens_ * width);
}

int64_t IndexedDataset::length(int64_t sequence) const { return load<int32_t>(lengths_, sequence); }

int64_t IndexedDataset::byte_offset(int64_t sequence) const { return load<int64_t>(offsets_, sequence); }

int64_t IndexedDataset::document_begin(int64_t document) const {
  return load<int64_t>(document_index_, document);
}

int IndexedDataset::mode(int64_t sequence) const {
  require(has_modes(), "{} has no modes", prefix_);
  return load<int8_t>(modes_, sequence);
}

void IndexedDataset::read(int64_t sequence, int64_t offset, std::span<int32_t> out,
                          int64_t vocab_size) const {
  const auto count = static_cast<int64_t>(out.size());
  require(sequence >= 0 && sequence < sequences_ && offset >= 0 && offset + count <= length(sequence),
          "tokens [{}, {}) of sequence {} of {} do not exist", offset, offset + count, sequence, prefix_);
  require(vocab_size <= kAnyVocabulary, "a vocabulary of {} does not fit 32-bit ids", vocab_size);
  const std::byte* from = data_.bytes().data() + byte_offset(sequence) + offset * token_bytes(type_);
  with_type(type_, [&](auto kind) {
    using T = decltype(kind);
    const int64_t bad = decode<T>(from, out, vocab_size);
    if (bad >= 0)
      input_error(
          "{}.bin: token {} of sequence {} (token {} of the file) is {}, which is not an id below {}; was "
          "the "
          "dataset made with another tokenizer?",
          prefix_, offset + bad, sequence, byte_offset(sequence) / token_bytes(type_) + offset + bad,
          load<T>(from, bad), vocab_size);
  });
}

std::vector<int32_t> IndexedDataset::read(int64_t sequence) const {
  std::vector<int32_t> tokens(static_cast<size_t>(length(sequence)));
  read(sequence, 0, tokens);
  return tokens;
}

std::span<const std::byte> IndexedDataset::raw(int64_t begin, int64_t end) const {
  require(begin >= 0 && begin <= end && end <= sequences_, "sequences [{}, {}) do not exist", begin, end);
  const auto place = [&](int64_t i) {
    return static_cast<size_t>(i < sequences_ ? byte_offset(i) : tokens_ * token_bytes(type_));
  };
  return data_.bytes().subspan(place(begin), place(end) - place(begin));
}

void IndexedDataset::check_vocabulary(int64_t vocab_size) const {
  constexpr int64_t kBlock = 1 << 16;
  std::vector<int32_t> block(kBlock);
  for (int64_t sequence = 0; sequence < sequences_; ++sequence)
    for (int64_t offset = 0, count = length(sequence); offset < count; offset += kBlock)
      read(sequence, offset, std::span(block).first(static_cast<size_t>(std::min(kBlock, count - offset))),
           vocab_size);
}

uint64_t IndexedDataset::lengths_hash() const {
  return Hasher().add(type_).add(hash_bytes(lengths_, static_cast<size_t>(4 * sequences_))).value();
}

std::string document_prefix(const std::string& prefix, const std::string& json_key) {
  return prefix + "_" + json_key + "_document";
}

}  // namespace trainer
