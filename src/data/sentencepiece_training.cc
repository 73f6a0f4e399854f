#include "data/sentencepiece_training.h"

#include <sentencepiece_trainer.h>

#include <deque>
#include <filesystem>
#include <unordered_map>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "data/tokenizer.h"
#include "data/utf8.h"

namespace trainer {
namespace {

constexpr size_t kBatchBytes = size_t{1} << 20;
constexpr size_t kLongestSentence = 4000;  // bytes; longer lines are cut, where the library would drop them
constexpr unsigned kSampleSeed = 1;

// The lines of all documents, one after the other.
class Sentences final : public sentencepiece::SentenceIterator {
 public:
  explicit Sentences(const SentencePieceTraining& training)
      : training_(training), reader_(training.files, training.format, kBatchBytes) {
    refill();
  }

  bool done() const override { return sentences_.empty(); }
  void Next() override {
    sentences_.pop_front();
    if (sentences_.empty()) refill();
  }
  const std::string& value() const override { return sentences_.front(); }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  void refill() {
    TextBatch batch;
    while (sentences_.empty() && reader_.next(batch))
      for_each_document(batch, training_.format, training_.json_key, [&](const DocumentPart& part) {
        if (first_invalid_utf8(part.text) != std::string_view::npos)
          input_error("{}:{}: the text from this line on is not UTF-8; convert the file", *batch.file,
                      part.line);
        add_lines(part.text);
      });
  }

  void add_lines(std::string_view text) {
    while (!text.empty()) {
      const size_t end = std::min(text.find('\n'), text.size());
      for (std::string_view line = text.substr(0, end); !line.empty();) {
        const size_t size =
            line.size() > kLongestSentence ? document_cut(line, kLongestSentence) : line.size();
        sentences_.emplace_back(line.substr(0, size));
        line.remove_prefix(size);
      }
      text.remove_prefix(std::min(end + 1, text.size()));
    }
  }

  const SentencePieceTraining& training_;
  TextReader reader_;
  std::deque<std::string> sentences_;
};

// The library's messages begin with its source line and the condition, in brackets; the user wants the
// sentence after.
std::string reason_of(const sentencepiece::util::Status& status) {
  const std::string message = status.ToString();
  const size_t bracket = message.rfind("] ");
  return bracket == std::string::npos ? message : message.substr(bracket + 2);
}

const char* flag(bool value) { return value ? "true" : "false"; }

}  // namespace

std::string train_sentencepiece(const SentencePieceTraining& training) {
  if (training.model_type != "bpe" && training.model_type != "unigram")
    input_error("SentencePiece model type '{}' is not known; choose bpe or unigram", training.model_type);
  const int smallest = training.byte_fallback ? 3 + 256 + 1 : 4;
  if (training.vocabulary_size < smallest)
    input_error("a vocabulary of {} is too small: with these options at least {} are needed",
                training.vocabulary_size, smallest);
  Sentences sentences(training);
  if (sentences.done())
    input_error("no text to make a vocabulary from in {}", fmt::join(training.files, ", "));

  const std::unordered_map<std::string, std::string> arguments = {
      {"model_type", training.model_type},
      {"vocab_size", std::to_string(training.vocabulary_size)},
      {"byte_fallback", flag(training.byte_fallback)},
      {"add_dummy_prefix", flag(training.space_prefix)},
      {"normalization_rule_name", "identity"},
      {"remove_extra_whitespaces", "false"},
      {"allow_whitespace_only_pieces", "true"},
      {"split_digits", "true"},
      {"character_coverage", "0.99995"},
      {"max_sentence_length", std::to_string(2 * kLongestSentence)},
      {"input_sentence_size", std::to_string(training.largest_sample)},
      {"shuffle_input_sentence", "true"},
      {"num_threads", std::to_string(training.threads)},
      {"minloglevel", "3"},
  };
  sentencepiece::SetRandomGeneratorSeed(kSampleSeed);
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(arguments, &sentences, &model);
  if (!status.ok())
    input_error("cannot make a vocabulary of {} from {}: {}", training.vocabulary_size,
                fmt::join(training.files, ", "), reason_of(status));
  return model;
}

void train_sentencepiece_folder(const SentencePieceTraining& training, const std::string& folder) {
  const std::string model = train_sentencepiece(training);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) run_error("cannot make the folder {}: {}", folder, error.message());
  write_file_atomically(std::filesystem::path(folder) / "tokenizer.model", model);
  const Json config = {{"tokenizer_class", "LlamaTokenizer"},
                       {"bos_token", "<s>"},
                       {"eos_token", "</s>"},
                       {"unk_token", "<unk>"},
                       {"add_bos_token", false},
                       {"add_eos_token", false},
                       {"add_prefix_space", training.space_prefix},
                       {"clean_up_tokenization_spaces", false},
                       {"legacy", false}};
  write_file_atomically(std::filesystem::path(folder) / "tokenizer_config.json", config.dump(2) + "\n");
}

}  // namespace trainer
