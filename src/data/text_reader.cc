#include "data/text_reader.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/json.h"
#include "data/tokenizer.h"

namespace trainer {
namespace {

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using FileHandle = std::unique_ptr<std::FILE, CloseFile>;

FileHandle open_file(const std::string& path) {
  FileHandle file(std::fopen(path.c_str(), "rbe"));
  if (!file) input_error("cannot open {}: {}", path, std::strerror(errno));
  return file;
}

uint64_t count_lines(std::string_view text) {
  return static_cast<uint64_t>(std::count(text.begin(), text.end(), '\n'));
}

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r\n") == std::string_view::npos; }

std::string text_of(const Json& object, const std::string& key, const std::string& where) {
  if (!object.is_object()) input_error("{}: expected a JSON object, found {}", where, object.type_name());
  if (object.contains(key)) return json_string(object, key, where);
  std::vector<std::string> keys;
  for (const auto& [name, value] : object.items()) keys.push_back(name);
  const std::string near = nearest_name(key, keys);
  input_error("{}: the object has no key '{}'{}; --json-key names the one that holds the text", where, key,
              near.empty() ? "" : fmt::format(" (but '{}')", near));
}

}  // namespace

TextFormat text_format(const std::string& name) {
  if (name == "jsonl") return TextFormat::kJsonLines;
  if (name == "lines") return TextFormat::kLines;
  if (name == "text") return TextFormat::kText;
  input_error("text format '{}' is not known; choose jsonl, lines or text", name);
}

struct TextReader::State {
  std::vector<std::string> files;
  TextFormat format;
  size_t batch_bytes;
  uint64_t total = 0;
  size_t current = 0;  // index into files
  FileHandle file;     // null: `current` is not open yet
  bool at_end = false;
  std::string pending;  // read, not given out yet
  uint64_t line = 1;    // that `pending` starts in
  bool inside_document = false;

  // Until `pending` has more than `wanted` bytes or the file ends.
  void fill(size_t wanted) {
    while (!at_end && pending.size() <= wanted) {
      const size_t had = pending.size();
      pending.resize(std::max(wanted + 1, had + (size_t{64} << 10)));
      const size_t got = std::fread(pending.data() + had, 1, pending.size() - had, file.get());
      pending.resize(had + got);
      if (std::ferror(file.get())) run_error("cannot read {}: {}", files[current], std::strerror(errno));
      at_end = got == 0;
    }
  }

  // Bytes of the next batch: up to the last line end within the batch size, else up to the first after it.
  size_t take_lines() {
    size_t searched = 0;
    for (size_t wanted = batch_bytes;; wanted *= 2) {
      fill(wanted);
      const size_t end = std::string_view(pending).substr(0, batch_bytes).rfind('\n');
      if (end != std::string::npos) return end + 1;
      const size_t later = pending.find('\n', searched);
      if (later != std::string::npos) return later + 1;
      if (at_end) return pending.size();
      searched = pending.size();
      if (searched > kLongestLine)
        input_error("{}:{}: the line is longer than {} bytes; is it the right format?", files[current], line,
                    kLongestLine);
    }
  }

  size_t take_text() {
    fill(batch_bytes);
    return pending.size() <= batch_bytes ? pending.size() : document_cut(pending, batch_bytes);
  }
};

TextReader::TextReader(std::vector<std::string> files, TextFormat format, size_t batch_bytes)
    : state_(std::make_unique<State>()) {
  require(batch_bytes > 0, "batches of no bytes");
  for (const std::string& file : files) {
    std::error_code error;
    // Asked, not opened: opening a pipe and closing it again would end what writes to it.
    if (::access(file.c_str(), R_OK) != 0) input_error("cannot open {}: {}", file, std::strerror(errno));
    if (std::filesystem::is_directory(file, error)) input_error("cannot read {}: it is a folder", file);
    const auto size = std::filesystem::file_size(file, error);
    if (!error) state_->total += size;  // a pipe has none
  }
  state_->files = std::move(files);
  state_->format = format;
  state_->batch_bytes = batch_bytes;
}

TextReader::~TextReader() = default;

uint64_t TextReader::total_bytes() const { return state_->total; }

bool TextReader::next(TextBatch& batch) {
  State& s = *state_;
  for (; s.current < s.files.size(); ++s.current) {
    if (!s.file) {
      s.file = open_file(s.files[s.current]);
      s.at_end = s.inside_document = false;
      s.line = 1;
    }
    const size_t taken = s.format == TextFormat::kText ? s.take_text() : s.take_lines();
    if (taken > 0) {
      batch.file = &s.files[s.current];
      batch.first_line = s.line;
      batch.text = s.pending.substr(0, taken);
      s.pending.erase(0, taken);
      s.line += count_lines(batch.text);
      batch.continues = s.inside_document;
      batch.ends_document = s.format == TextFormat::kText && s.pending.empty() && s.at_end;
      s.inside_document = s.format == TextFormat::kText;
      return true;
    }
    s.file.reset();
  }
  return false;
}

void for_each_document(const TextBatch& batch, TextFormat format, const std::string& json_key,
                       const std::function<void(const DocumentPart&)>& use) {
  if (format == TextFormat::kText) {
    use({batch.text, batch.first_line, batch.continues, batch.ends_document});
    return;
  }
  uint64_t line = batch.first_line;
  const std::string_view text = batch.text;
  for (size_t begin = 0; begin < text.size(); ++line) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view content = text.substr(begin, end - begin);
    begin = end + 1;
    if (content.ends_with('\r')) content.remove_suffix(1);
    if (format == TextFormat::kLines) {
      use({content, line, false, true});
    } else if (!is_blank(content)) {
      const std::string where = fmt::format("{}:{}", *batch.file, line);
      const std::string document = text_of(parse_json(content, where), json_key, where);
      use({document, line, false, true});
    }
  }
}

}  // namespace trainer
