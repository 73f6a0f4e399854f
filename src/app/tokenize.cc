#include "app/tokenize.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <iterator>
#include <limits>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "app/command.h"
#include "app/options.h"
#include "data/sentencepiece_training.h"
#include "data/text_pipeline.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTokenizeUsage =
    R"(usage: trainer tokenize --input FILES... --output PREFIX --tokenizer PATH|byte [options]
       trainer tokenize --input FILES... --train-tokenizer sentencepiece --vocabulary-size N
                        --tokenizer-output FOLDER [--output PREFIX] [options]

Turns text files into the dataset PREFIX.bin and PREFIX.idx. The second form first makes a vocabulary from the
same files; without --output it does only that.

  --input FILES...         one or more files, read in this order
  --output PREFIX          the dataset, without extension
  --tokenizer PATH         a folder with tokenizer.json or tokenizer.model, one of those files, or "byte"
  --format FORMAT          jsonl: one JSON object a line, --json-key names its text
                           lines: one document a line
                           text:  one document a file
                           (default: jsonl for files named .jsonl or .json, else text)
  --json-key KEY           default: text
  --append-eod             end every document with the end-of-document token
  --eod-id N               that token, where it is not the tokenizer's own
  --workers N              threads that encode (default: the cores this process may use)
  --overwrite              replace files that are there already

  --train-tokenizer KIND   only "sentencepiece"
  --vocabulary-size N      tokens in the vocabulary to be made
  --tokenizer-output DIR   where tokenizer.model is written
  --model-type TYPE        bpe (default) or unigram

Documents without text are skipped. A document longer than 64 KiB is encoded in parts, cut before white space,
which gives the same tokens for tokenizers whose pieces start at white space; it stays one document.
)";

struct Arguments {
  std::vector<std::string> inputs;
  std::string output = {}, tokenizer = {}, format = {}, json_key = {}, train_kind = {}, tokenizer_output = {},
              model_type = {};
  std::optional<int32_t> eod = {};
  int workers = 0, vocabulary_size = 0;
  bool append_eod = false, overwrite = false;
};

// Takes the words of --input, the one option with several values, out of `words`.
std::vector<std::string> take_inputs(std::vector<std::string>& words) {
  std::vector<std::string> inputs, others;
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i].starts_with("--input=")) {
      inputs.push_back(words[i].substr(8));
    } else if (words[i] == "--input") {
      const size_t before = inputs.size();
      while (i + 1 < words.size() && !words[i + 1].starts_with("--")) inputs.push_back(words[++i]);
      if (inputs.size() == before) input_error("--input needs a value");
    } else {
      others.push_back(words[i]);
    }
  }
  words = std::move(others);
  return inputs;
}

Arguments parse_arguments(std::span<const std::string> given) {
  std::vector<std::string> words(given.begin(), given.end());
  Arguments arguments{.inputs = take_inputs(words)};
  const Options options(words,
                        {"--output", "--tokenizer", "--format", "--json-key", "--eod-id", "--workers",
                         "--train-tokenizer", "--vocabulary-size", "--tokenizer-output", "--model-type"},
                        {"--append-eod", "--overwrite"});
  const auto integer = [&](const std::string& name) {
    const int64_t value = options.integer(name, 0, name == "--eod-id" ? 0 : 1);
    if (value > std::numeric_limits<int32_t>::max()) input_error("{}: {} is too large", name, value);
    return static_cast<int32_t>(value);
  };
  arguments.output = options.find("--output").value_or("");
  arguments.tokenizer = options.find("--tokenizer").value_or("");
  arguments.format = options.find("--format").value_or("");
  arguments.json_key = options.find("--json-key").value_or("text");
  arguments.train_kind = options.find("--train-tokenizer").value_or("");
  arguments.tokenizer_output = options.find("--tokenizer-output").value_or("");
  arguments.model_type = options.find("--model-type").value_or("bpe");
  if (options.has("--eod-id")) arguments.eod = integer("--eod-id");
  arguments.workers = integer("--workers");
  arguments.vocabulary_size = integer("--vocabulary-size");
  arguments.append_eod = options.has("--append-eod");
  arguments.overwrite = options.has("--overwrite");
  return arguments;
}

void check_arguments(const Arguments& arguments) {
  if (arguments.inputs.empty()) input_error("--input is missing; --help lists the arguments");
  if (arguments.train_kind.empty()) {
    if (arguments.tokenizer.empty()) input_error("--tokenizer is missing");
    if (arguments.output.empty()) input_error("--output is missing");
    if (arguments.vocabulary_size > 0 || !arguments.tokenizer_output.empty())
      input_error("--vocabulary-size and --tokenizer-output belong to --train-tokenizer sentencepiece");
  } else {
    if (arguments.train_kind != "sentencepiece")
      input_error("--train-tokenizer: '{}' is not known, only sentencepiece", arguments.train_kind);
    if (!arguments.tokenizer.empty()) input_error("give --tokenizer or --train-tokenizer, not both");
    if (arguments.vocabulary_size == 0) input_error("--train-tokenizer needs --vocabulary-size");
    if (arguments.tokenizer_output.empty()) input_error("--train-tokenizer needs --tokenizer-output");
  }
}

TextFormat format_of(const Arguments& arguments) {
  if (!arguments.format.empty()) return text_format(arguments.format);
  const auto is_json = [](const std::string& file) {
    const auto extension = fs::path(file).extension();
    return extension == ".jsonl" || extension == ".json";
  };
  const bool json = is_json(arguments.inputs[0]);
  for (const std::string& file : arguments.inputs)
    if (is_json(file) != json)
      input_error("{} and {} are not of one kind; name it with --format", arguments.inputs[0], file);
  return json ? TextFormat::kJsonLines : TextFormat::kText;
}

void refuse_existing(const fs::path& path, bool overwrite) {
  std::error_code ignored;
  if (!overwrite && fs::exists(path, ignored))
    input_error("{} is there already; choose another name, or replace it with --overwrite", path.string());
}

std::string readable_bytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1000 && unit + 1 < std::size(kUnits); ++unit) value /= 1000;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

// A bar that is drawn over on a terminal; elsewhere a line every few seconds.
class ProgressPrinter {
 public:
  void operator()(const TextPipelineCounts& counts) {
    const auto now = std::chrono::steady_clock::now();
    if (now - printed_ < (terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(5000)))
      return;
    printed_ = now;
    const double seconds = std::chrono::duration<double>(now - begin_).count();
    const double share =
        counts.total_bytes == 0 ? 0 : std::min(1.0, double(counts.bytes_read) / double(counts.total_bytes));
    const std::string figures =
        fmt::format("{:3.0f} %  {} documents  {} tokens  {}/s  {}", 100 * share, counts.documents,
                    counts.tokens, readable_bytes(static_cast<uint64_t>(double(counts.bytes_read) / seconds)),
                    share > 0 ? fmt::format("{:.0f} s left", seconds / share - seconds) : "");
    if (terminal_) {
      constexpr size_t kWidth = 24;
      const auto filled = static_cast<size_t>(share * kWidth);
      fmt::print(stderr, "\r[{}{}] {}\x1B[K", std::string(filled, '#'), std::string(kWidth - filled, ' '),
                 figures);
      drawn_ = true;
    } else {
      fmt::print(stderr, "tokenize: {}\n", figures);
    }
  }
  void clear() {
    if (std::exchange(drawn_, false)) fmt::print(stderr, "\r\x1B[K");
  }
  ~ProgressPrinter() { clear(); }

 private:
  bool terminal_ = ::isatty(STDERR_FILENO) == 1, drawn_ = false;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now(), printed_ = begin_;
};

void make_vocabulary(const Arguments& arguments, TextFormat format) {
  const auto begin = std::chrono::steady_clock::now();
  train_sentencepiece_folder({.files = arguments.inputs,
                              .format = format,
                              .json_key = arguments.json_key,
                              .vocabulary_size = arguments.vocabulary_size,
                              .model_type = arguments.model_type},
                             arguments.tokenizer_output);
  fmt::print("{}: SentencePiece vocabulary of {} tokens, in {:.1f} s\n",
             (fs::path(arguments.tokenizer_output) / "tokenizer.model").string(),
             load_tokenizer(arguments.tokenizer_output)->vocabulary_size(),
             std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
}

void make_dataset(const Arguments& arguments, TextFormat format) {
  const std::string& source = arguments.train_kind.empty() ? arguments.tokenizer : arguments.tokenizer_output;
  const auto tokenizer = load_tokenizer(source, {.eod = arguments.eod});
  if (arguments.append_eod && !tokenizer->eod())
    input_error("--append-eod: tokenizer {} names no end-of-document token; name one with --eod-id", source);
  if (const fs::path folder = fs::path(arguments.output).parent_path(); !folder.empty()) {
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) run_error("cannot make the folder {}: {}", folder.string(), error.message());
  }
  const TextPipelineOptions options{.files = arguments.inputs,
                                    .format = format,
                                    .json_key = arguments.json_key,
                                    .workers = arguments.workers > 0
                                                   ? arguments.workers
                                                   : std::max(1, int(std::thread::hardware_concurrency()))};
  const auto begin = std::chrono::steady_clock::now();
  IndexedDatasetWriter writer(arguments.output, tokenizer->vocabulary_size(),
                              arguments.append_eod ? tokenizer->eod() : std::nullopt);
  ProgressPrinter progress;
  const auto counts = tokenize_files(*tokenizer, options, writer, std::ref(progress));
  progress.clear();
  if (counts.documents == 0) input_error("there is no text in {}", fmt::join(arguments.inputs, ", "));
  writer.finish();
  fmt::print(
      "{0}.bin, {0}.idx: {1} documents, {2} tokens of {3} bytes, {4} of text, {5:.2f} bytes a token, in "
      "{6:.1f} s\n",
      arguments.output, counts.documents, counts.tokens, token_bytes(writer.token_type()),
      readable_bytes(counts.text_bytes), double(counts.text_bytes) / double(counts.tokens),
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  if (counts.empty_documents > 0) fmt::print("skipped {} documents without text\n", counts.empty_documents);
}

void run(const Arguments& arguments) {
  check_arguments(arguments);
  const TextFormat format = format_of(arguments);
  if (!arguments.output.empty())
    for (const char* extension : {".bin", ".idx"})
      refuse_existing(arguments.output + extension, arguments.overwrite);
  if (!arguments.tokenizer_output.empty())
    for (const char* name : {"tokenizer.model", "tokenizer_config.json"})
      refuse_existing(fs::path(arguments.tokenizer_output) / name, arguments.overwrite);
  // It would be read in place of the vocabulary that is to be made.
  if (!arguments.tokenizer_output.empty()) {
    const fs::path other = fs::path(arguments.tokenizer_output) / "tokenizer.json";
    if (std::error_code ignored; fs::exists(other, ignored))
      input_error("{} is another tokenizer; choose another folder, or take it away", other.string());
  }
  if (!arguments.train_kind.empty()) make_vocabulary(arguments, format);
  if (!arguments.output.empty()) make_dataset(arguments, format);
}

}  // namespace

int tokenize_command(std::span<const std::string> words) {
  return run_command({"tokenize", kTokenizeUsage}, words, [&] { run(parse_arguments(words)); });
}

}  // namespace trainer
