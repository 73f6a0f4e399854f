// Text files as a stream of bounded pieces of work, and the documents in them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace trainer {

enum class TextFormat {
  kJsonLines,  // one JSON object a line; blank lines are passed over
  kLines,      // one document a line, without its line end (\n or \r\n)
  kText,       // one document a file, every byte of it
};

// "jsonl", "lines" or "text"; throws InputError otherwise.
TextFormat text_format(const std::string& name);

// Whole lines of one file (kJsonLines, kLines), or a part of its one document (kText).
struct TextBatch {
  const std::string* file = nullptr;  // owned by the reader
  uint64_t first_line = 1;            // number of the line that `text` starts in
  std::string text;
  bool continues = false;      // kText: earlier batches hold the beginning of the document
  bool ends_document = false;  // kText: this is its last part
};

// Reads files one after the other; not for concurrent use.
class TextReader {
 public:
  // A longer line is an error: a file without line ends must not fill the memory.
  static constexpr size_t kLongestLine = size_t{1} << 30;

  // A batch has about `batch_bytes`, more only where one line has. How files are cut depends on `batch_bytes`
  // alone. Throws InputError naming a file that cannot be opened, before anything is read.
  TextReader(std::vector<std::string> files, TextFormat format, size_t batch_bytes);
  ~TextReader();

  // False at the end of the last file. Throws InputError (a line too long) or RunError (reading failed).
  bool next(TextBatch& batch);

  uint64_t total_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A document or, for kText, a part of one.
struct DocumentPart {
  std::string_view text;
  uint64_t line;  // that it starts in
  bool continues, ends_document;
};

// Calls `use` for the documents of a batch in order. `json_key` is the member of each JSON object that holds
// its text. Throws InputError naming file and line: not JSON, no such member, a member that is not a string.
void for_each_document(const TextBatch& batch, TextFormat format, const std::string& json_key,
                       const std::function<void(const DocumentPart&)>& use);

}  // namespace trainer
