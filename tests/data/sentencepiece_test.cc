#include <thread>

#include "base/file.h"
#include "data/sentencepiece_tokenizer.h"
#include "data/sentencepiece_training.h"
#include "dataset_files.h"

namespace trainer::testing {
namespace {

using ::testing::HasSubstr;
using Ids = std::vector<int32_t>;

const std::string kModel = TEST_DATA "/tokenizer/byte_fallback.model";

std::string sample_text() {
  std::string text;
  const std::vector<std::string> words = {"the", "light", "was",   "good",  "and",
                                          "day", "night", "water", "earth", "called"};
  for (size_t i = 0; i < 4000; ++i)
    text += words[(i * i + i / 7) % words.size()] + (i % 11 == 10 ? ".\n" : i % 50 == 3 ? "  " : " ");
  return text + "caf\u00E9 \u4E2D\u6587\t1234\n";
}

TEST(Cases, ByteFallbackAndPrefix) {
  const auto tokenizer = load_tokenizer(kModel);
  const std::vector<std::pair<std::string, Ids>> cases = {
      {"ab", {264}},
      {" ab", {259, 264}},
      {"abc", {264, 262}},
      {"", {}},
      {"\n", {259, 13}},
      {"a\nb", {259, 260, 13, 261}},
      {"\u7BC7", {259, 234, 178, 138}},
      {"\U0001F999", {259, 243, 162, 169, 156}},
      {"<0x41>", {259, 63, 51, 123, 55, 52, 65}},
      {"<s>ab", {259, 63, 118, 65, 263}},
      {"a  b", {259, 260, 266, 261}},
      {"   ", {266, 266}},
      {"ab ", {264, 259}},
  };
  for (const auto& [text, ids] : cases) {
    EXPECT_EQ(tokenizer->encode(text), ids) << text;
    EXPECT_EQ(tokenizer->decode_bytes(ids), text);
    EXPECT_EQ(count_text_bytes(*tokenizer, ids), text.size()) << text;
  }
  // Inside a document no prefix is added.
  const std::vector<std::pair<std::string, Ids>> continued = {
      {"ab", {263}}, {"abc", {265}}, {"\n", {13}}, {" ab", {264}}};
  for (const auto& [text, ids] : continued) {
    EXPECT_EQ(tokenizer->encode(text, {.continues = true}), ids) << text;
    EXPECT_EQ(tokenizer->decode_bytes(ids, true), text);
    EXPECT_EQ(count_text_bytes(*tokenizer, ids, true), text.size());
  }
  EXPECT_EQ(tokenizer->decode(Ids{234}), "\uFFFD");
  EXPECT_EQ(tokenizer->decode(Ids{234, 178, 138}), "\u7BC7");
}

TEST(SentencePieceTokenizer, ControlPieces) {
  const auto tokenizer = load_tokenizer(kModel);
  EXPECT_EQ(tokenizer->vocabulary_size(), 267);
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->eos(), 2);
  EXPECT_EQ(tokenizer->eod(), 2);
  EXPECT_EQ(load_tokenizer(kModel, {.eod = 1})->eod(), 1);
  EXPECT_EQ(tokenizer->encode("<s>ab</s>ab", {.allow_special = true}), (Ids{1, 264, 2, 263}));
  EXPECT_EQ(tokenizer->encode("ab", {.add_special = true}), (Ids{1, 264}));
  EXPECT_EQ(tokenizer->decode(Ids{1, 264, 2}), "ab");
  EXPECT_EQ(tokenizer->decode(Ids{1, 264, 2}, false, true), "<s>ab</s>");
  // Each end of document starts a new prefix; a token for text that is not known has no count.
  EXPECT_EQ(count_text_bytes(*tokenizer, Ids{264, 2, 264, 264, 2}), 2u + 2u + 3u);
  EXPECT_THROW(count_text_bytes(*tokenizer, Ids{264, 0}), InputError);
  EXPECT_THROW(tokenizer->bytes(267), InputError);
  EXPECT_THROW(tokenizer->encode("\xFF"), InputError);
  EXPECT_THROW(SentencePieceTokenizer("", "empty"), InputError);
}

TEST(SentencePieceTraining, KeepsEveryByteAndIsRepeatable) {
  const TemporaryFolder folder;
  const std::string text = sample_text();
  put_file(folder / "text.txt", text);
  for (const std::string type : {"bpe", "unigram"}) {
    SentencePieceTraining training{
        .files = {folder / "text.txt"}, .vocabulary_size = 300, .model_type = type};
    const std::string model = train_sentencepiece(training);
    EXPECT_EQ(train_sentencepiece(training), model);
    const SentencePieceTokenizer tokenizer(model, type);
    EXPECT_LE(tokenizer.vocabulary_size(), 300);
    EXPECT_EQ(tokenizer.eod(), 2);
    const auto tokens = tokenizer.encode(text, {});
    EXPECT_LT(tokens.size(), text.size() * 2 / 3);
    EXPECT_EQ(tokenizer.decode_bytes(tokens), text);
    EXPECT_EQ(count_text_bytes(tokenizer, tokens), text.size());
    const std::string foreign = " \U0001F999\r\n\t<s>  x";
    EXPECT_EQ(tokenizer.decode_bytes(tokenizer.encode(foreign, {})), foreign);
  }
}

TEST(SentencePieceTraining, WritesAFolder) {
  const TemporaryFolder folder;
  put_file(folder / "text.txt", sample_text());
  train_sentencepiece_folder({.files = {folder / "text.txt"}, .vocabulary_size = 300, .space_prefix = true},
                             folder / "made/here");
  const auto tokenizer = load_tokenizer(folder / "made/here");
  EXPECT_EQ(tokenizer->vocabulary_size(), 300);
  EXPECT_TRUE(tokenizer->adds_space_prefix());
  EXPECT_THAT(read_file(folder / "made/here/tokenizer_config.json"), HasSubstr("LlamaTokenizer"));
}

TEST(SentencePieceTraining, RefusesWhatCannotBeMade) {
  const TemporaryFolder folder;
  put_file(folder / "text.txt", "a few words\n");
  put_file(folder / "empty.txt", "");
  put_file(folder / "latin1.txt", "line\ncaf\xE9\n");
  const auto train = [&](const std::string& file, int size, const std::string& type) {
    train_sentencepiece({.files = {folder / file}, .vocabulary_size = size, .model_type = type});
  };
  EXPECT_THAT(input_error_of([&] { train("text.txt", 5000, "bpe"); }),
              HasSubstr("Vocabulary size too high (5000)"));
  EXPECT_THROW(train("text.txt", 200, "bpe"), InputError);
  EXPECT_THROW(train("text.txt", 300, "wordpiece"), InputError);
  EXPECT_THROW(train("empty.txt", 300, "bpe"), InputError);
  EXPECT_THROW(train("latin1.txt", 300, "bpe"), InputError);
  EXPECT_THROW(train("missing.txt", 300, "bpe"), InputError);
}

TEST(SentencePieceTokenizer, ManyThreadsAtOnce) {
  const auto tokenizer = load_tokenizer(kModel);
  const std::string text = sample_text();
  const Ids expected = tokenizer->encode(text);
  std::vector<Ids> results(4);
  std::vector<std::thread> threads;
  for (auto& result : results) threads.emplace_back([&] { result = tokenizer->encode(text); });
  for (auto& thread : threads) thread.join();
  for (const auto& result : results) EXPECT_EQ(result, expected);
}

}  // namespace
}  // namespace trainer::testing
