#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <utility>

#include "base/error.h"
#include "data/indexed_dataset.h"

namespace trainer {
namespace {

constexpr size_t kBufferBytes = 1 << 20;
constexpr size_t kBlock = 1 << 16;  // elements

// Values put by during writing and read back, in order and as often as wanted, when the index is made. They
// lie in a nameless file beside the dataset, which the system takes away with the process.
template <class T>
class Spool {
 public:
  explicit Spool(const std::string& beside) {
    std::string name = beside + ".spool-XXXXXX";
    const int descriptor = ::mkstemp(name.data());
    if (descriptor < 0) run_error("cannot create {}: {}", name, std::strerror(errno));
    ::unlink(name.c_str());
    file_ = ::fdopen(descriptor, "w+b");
    if (!file_) ::close(descriptor);
    if (!file_) run_error("cannot open {}: {}", name, std::strerror(errno));
  }
  ~Spool() { std::fclose(file_); }
  Spool(const Spool&) = delete;
  Spool& operator=(const Spool&) = delete;

  void add(T value) {
    if (std::fwrite(&value, sizeof value, 1, file_) != 1)
      run_error("cannot write the temporary index: {}", std::strerror(errno));
    ++count_;
  }
  int64_t count() const { return count_; }

  template <class Body>
  void for_each_block(Body body) {
    if (std::fflush(file_) != 0 || std::fseek(file_, 0, SEEK_SET) != 0)
      run_error("cannot write the temporary index: {}", std::strerror(errno));
    std::vector<T> block(kBlock);
    for (int64_t left = count_; left > 0;) {
      const size_t wanted = std::min(kBlock, static_cast<size_t>(left));
      if (std::fread(block.data(), sizeof(T), wanted, file_) != wanted)
        run_error("cannot read the temporary index back: {}", std::strerror(errno));
      body(std::span<const T>(block.data(), wanted));
      left -= static_cast<int64_t>(wanted);
    }
  }

 private:
  std::FILE* file_ = nullptr;
  int64_t count_ = 0;
};

template <class T>
void write_value(AtomicFile& file, T value) {
  file.write(&value, sizeof value);
}

template <class T>
void append_token(std::vector<std::byte>& to, int32_t token) {
  const T value = static_cast<T>(token);  // in range: the writer checked it against the vocabulary
  const auto* bytes = reinterpret_cast<const std::byte*>(&value);
  to.insert(to.end(), bytes, bytes + sizeof value);
}

}  // namespace

struct IndexedDatasetWriter::State {
  State(const std::string& name, TokenType token_type)
      : prefix(name), type(token_type), data(name + ".bin"), lengths(name), document_ends(name) {}

  void write_buffer() {
    data.write(buffer.data(), buffer.size());
    buffer.clear();
  }

  void put(int32_t token) {
    if (type == TokenType::kU16)
      append_token<uint16_t>(buffer, token);
    else
      append_token<int32_t>(buffer, token);
    if (buffer.size() >= kBufferBytes) write_buffer();
  }

  std::string prefix;
  TokenType type;
  int64_t vocab_size = 0;
  std::optional<int32_t> eod;
  AtomicFile data;
  std::vector<std::byte> buffer;  // of the .bin
  Spool<int32_t> lengths;         // of each sequence
  Spool<int64_t> document_ends;   // sequences up to the end of each document
  int64_t tokens = 0;
  int64_t open_length = 0;  // of the document that has begun and not ended
  bool finished = false;
};

IndexedDatasetWriter::IndexedDatasetWriter(const std::string& prefix, TokenType type)
    : state_(std::make_unique<State>(prefix, type)) {}

IndexedDatasetWriter::IndexedDatasetWriter(const std::string& prefix, int64_t vocab_size,
                                           std::optional<int32_t> eod) {
  if (vocab_size < 1 || vocab_size > kAnyVocabulary)
    input_error("{}: a vocabulary of {} ids cannot be stored (1 to 2^31 can)", prefix, vocab_size);
  if (eod && (*eod < 0 || *eod >= vocab_size))
    input_error("{}: the end-of-document id {} is outside the vocabulary of {}", prefix, *eod, vocab_size);
  state_ = std::make_unique<State>(prefix, writer_token_type(vocab_size));
  state_->vocab_size = vocab_size;
  state_->eod = eod;
}

IndexedDatasetWriter::~IndexedDatasetWriter() = default;

bool IndexedDatasetWriter::add_document(std::span<const int32_t> tokens) {
  require(state_->open_length == 0, "a document is added inside another");
  add_tokens(tokens);
  return end_document();
}

void IndexedDatasetWriter::add_tokens(std::span<const int32_t> tokens) {
  State& s = *state_;
  require(s.vocab_size > 0 && !s.finished, "this writer takes no documents");
  const int64_t length = s.open_length + static_cast<int64_t>(tokens.size());
  if (length + (s.eod ? 1 : 0) > std::numeric_limits<int32_t>::max())
    input_error("{}: document {} has {} tokens; the format stores lengths below 2^31", s.prefix,
                s.document_ends.count(), length);
  for (size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] < 0 || tokens[i] >= s.vocab_size)
      input_error(
          "{}: token {} of document {} is {}, outside the vocabulary of {}; it cannot be stored as {}",
          s.prefix, s.open_length + static_cast<int64_t>(i), s.document_ends.count(), tokens[i], s.vocab_size,
          token_type_name(s.type));
  for (const int32_t token : tokens) s.put(token);
  s.open_length = length;
}

bool IndexedDatasetWriter::end_document() {
  State& s = *state_;
  if (s.open_length == 0) return false;
  if (s.eod) s.put(*s.eod);
  const int64_t length = std::exchange(s.open_length, 0) + (s.eod ? 1 : 0);
  s.lengths.add(static_cast<int32_t>(length));
  s.document_ends.add(s.lengths.count());
  s.tokens += length;
  return true;
}

void IndexedDatasetWriter::append(const IndexedDataset& other) {
  State& s = *state_;
  require(!s.finished && s.open_length == 0, "this writer is finished, or inside a document");
  if (other.token_type() != s.type)
    input_error("{}: cannot be merged into {}: its tokens are {}, there they are {}", other.prefix(),
                s.prefix, token_type_name(other.token_type()), token_type_name(s.type));
  if (other.has_modes()) input_error("{}: multimodal datasets cannot be merged", other.prefix());
  s.write_buffer();
  const auto bytes = other.raw(0, other.sequences());
  s.data.write(bytes.data(), bytes.size());
  const int64_t before = s.lengths.count();
  for (int64_t i = 0; i < other.sequences(); ++i) s.lengths.add(static_cast<int32_t>(other.length(i)));
  for (int64_t i = 1; i <= other.documents(); ++i) s.document_ends.add(before + other.document_begin(i));
  s.tokens += other.tokens();
}

void IndexedDatasetWriter::finish() {
  State& s = *state_;
  require(!s.finished && s.open_length == 0, "this writer is finished already, or inside a document");
  s.finished = true;
  s.write_buffer();
  AtomicFile index(s.prefix + ".idx");
  index.write("MMIDIDX\0", 9);
  write_value(index, uint64_t{1});
  write_value(index, s.type);
  write_value(index, static_cast<uint64_t>(s.lengths.count()));
  write_value(index, static_cast<uint64_t>(s.document_ends.count() + 1));
  s.lengths.for_each_block([&](auto block) { index.write(block.data(), block.size_bytes()); });
  int64_t offset = 0;
  std::vector<int64_t> offsets;
  s.lengths.for_each_block([&](auto block) {
    offsets.clear();
    for (const int32_t length : block) {
      offsets.push_back(offset);
      offset += length * token_bytes(s.type);
    }
    index.write(offsets.data(), offsets.size() * sizeof(int64_t));
  });
  write_value(index, int64_t{0});
  s.document_ends.for_each_block([&](auto block) { index.write(block.data(), block.size_bytes()); });

  std::error_code ignored;  // usually there is no older index to take away
  std::filesystem::remove(s.prefix + ".idx", ignored);
  s.data.commit();
  index.commit();
}

TokenType IndexedDatasetWriter::token_type() const { return state_->type; }
int64_t IndexedDatasetWriter::sequences() const { return state_->lengths.count(); }
int64_t IndexedDatasetWriter::documents() const { return state_->document_ends.count(); }
int64_t IndexedDatasetWriter::tokens() const { return state_->tokens; }

void merge_datasets(std::span<const std::string> prefixes, const std::string& output_prefix) {
  if (prefixes.empty()) input_error("{}: no datasets to merge were named", output_prefix);
  // All are opened, and so checked, before anything is written.
  std::vector<IndexedDataset> datasets;
  for (const std::string& prefix : prefixes) datasets.emplace_back(prefix);
  IndexedDatasetWriter writer(output_prefix, datasets[0].token_type());
  for (const IndexedDataset& dataset : datasets) writer.append(dataset);
  writer.finish();
}

}  // namespace trainer
