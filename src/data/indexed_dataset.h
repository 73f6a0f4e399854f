// The indexed dataset of Megatron-LM: PREFIX.bin holds tokens and nothing else, PREFIX.idx says where each
// sequence lies and which sequences make a document. Read through memory maps, written as a stream.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"

namespace trainer {

// The codes of the format. Note that 6 is the double and 7 the float.
enum class TokenType : uint8_t { kU8 = 1, kI8, kI16, kI32, kI64, kF64, kF32, kU16 };

int64_t token_bytes(TokenType type);
const char* token_type_name(TokenType type);
// What the writer uses: u16 below 65500 ids, i32 from there on, as Megatron-LM does.
TokenType writer_token_type(int64_t vocab_size);

// For readers that do not know the vocabulary: every id that an int32 can hold.
inline constexpr int64_t kAnyVocabulary = int64_t{1} << 31;

// Read-only, memory-mapped; every method is safe to call from several threads. The whole index is checked
// when it is opened: anything damaged is an InputError that names the file and the fault.
class IndexedDataset {
 public:
  // `prefix` without extension; a trailing ".bin" or ".idx" is taken off.
  explicit IndexedDataset(const std::string& prefix);

  const std::string& prefix() const { return prefix_; }
  TokenType token_type() const { return type_; }
  int64_t sequences() const { return sequences_; }
  int64_t documents() const { return documents_; }
  int64_t tokens() const { return tokens_; }

  int64_t length(int64_t sequence) const;       // tokens; may be 0
  int64_t byte_offset(int64_t sequence) const;  // in the .bin
  // First sequence of a document; `document` may be documents(), which gives sequences().
  int64_t document_begin(int64_t document) const;
  // The modes of a multimodal dataset (one byte a sequence after the index); text datasets have none.
  bool has_modes() const { return modes_ != nullptr; }
  int mode(int64_t sequence) const;

  // Tokens [offset, offset + out.size()) of a sequence. An id outside [0, vocab_size), or a floating-point
  // token that is no integer, is an InputError that says where it stands.
  void read(int64_t sequence, int64_t offset, std::span<int32_t> out,
            int64_t vocab_size = kAnyVocabulary) const;
  std::vector<int32_t> read(int64_t sequence) const;
  // Raw bytes of the tokens of sequences [begin, end), which lie side by side.
  std::span<const std::byte> raw(int64_t begin, int64_t end) const;
  // Reads every token once; same errors as `read`.
  void check_vocabulary(int64_t vocab_size) const;
  // Hash of what orders samples: token type and all sequence lengths. Not of the tokens.
  uint64_t lengths_hash() const;

 private:
  void check_arrays();

  std::string prefix_;
  MappedFile index_, data_;
  TokenType type_ = TokenType::kI32;
  int64_t sequences_ = 0, documents_ = 0, tokens_ = 0;
  // Into index_. The format starts them at byte 34, so none is aligned: elements are copied out, never cast.
  const std::byte* lengths_ = nullptr;         // i32 [sequences]
  const std::byte* offsets_ = nullptr;         // i64 [sequences]
  const std::byte* document_index_ = nullptr;  // i64 [documents + 1]
  const std::byte* modes_ = nullptr;           // i8 [sequences], or null
};

// Writes a dataset in memory that does not grow with it. Nothing appears under the final names before
// `finish`; without it the destructor removes what was written. The .idx comes last and an older one is taken
// away before the .bin is replaced, so there is never an index beside tokens that are not its own.
class IndexedDatasetWriter {
 public:
  // With `eod`, that id ends every document and counts in its length. Throws InputError for a vocabulary or
  // an EOD out of range, RunError when the files cannot be made.
  IndexedDatasetWriter(const std::string& prefix, int64_t vocab_size, std::optional<int32_t> eod);
  IndexedDatasetWriter(const std::string& prefix, TokenType type);  // for `append`
  ~IndexedDatasetWriter();
  IndexedDatasetWriter(const IndexedDatasetWriter&) = delete;
  IndexedDatasetWriter& operator=(const IndexedDatasetWriter&) = delete;

  // One document of one sequence. A document without tokens is skipped (no lone EOD is written) and false
  // comes back. Ids outside the vocabulary are an InputError; the writer is then as it was before the call.
  bool add_document(std::span<const int32_t> tokens);
  // The same for a document that is never in memory as a whole: its tokens piece by piece, then its end. A
  // document of no tokens is skipped and `end_document` gives false. Errors as in `add_document`.
  void add_tokens(std::span<const int32_t> tokens);
  bool end_document();
  // All sequences and documents of another dataset, which must have the same token type and no modes.
  void append(const IndexedDataset& other);
  // Puts both files in place. Call once.
  void finish();

  TokenType token_type() const;
  int64_t sequences() const;
  int64_t documents() const;
  int64_t tokens() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The datasets one after the other, as one.
void merge_datasets(std::span<const std::string> prefixes, const std::string& output_prefix);

// PREFIX_KEY_document, the name under which the tokens of one JSON key are kept.
std::string document_prefix(const std::string& prefix, const std::string& json_key);

}  // namespace trainer
