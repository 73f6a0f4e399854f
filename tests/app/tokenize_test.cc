#include "app/tokenize.h"

#include "base/file.h"
#include "data/dataset_files.h"
#include "data/tokenizer.h"
#include "support/captured.h"

namespace trainer::testing {
namespace {

using testing::Captured;
using ::testing::HasSubstr;

Captured tokenize(const std::vector<std::string>& arguments) {
  return testing::capture([&] { return tokenize_command(arguments); });
}

TEST(TokenizeCommand, WritesADataset) {
  const TemporaryFolder folder;
  put_file(folder / "a.jsonl", "{\"body\":\"one\"}\n{\"body\":\"two\"}\n");
  put_file(folder / "b.jsonl", "{\"body\":\"three\"}\n");
  const auto done =
      tokenize({"--input", folder / "a.jsonl", folder / "b.jsonl", "--output", folder / "new/out",
                "--tokenizer", "byte", "--append-eod", "--json-key=body", "--workers", "2"});
  ASSERT_EQ(done.code, 0) << done.errors;
  EXPECT_THAT(done.output, HasSubstr("3 documents, 14 tokens"));
  const IndexedDataset dataset(folder / "new/out");
  ASSERT_EQ(dataset.documents(), 3);
  const auto tokens = dataset.read(2);
  EXPECT_EQ(tokens.back(), 256);
  EXPECT_EQ(load_tokenizer("byte")->decode(tokens), "three");
}

TEST(TokenizeCommand, MakesAVocabularyFirst) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 3000; ++i) text += i % 7 == 0 ? "light\n" : i % 3 == 0 ? "water " : "earth and ";
  put_file(folder / "in.txt", text);
  const std::vector<std::string> train = {
      "--input", folder / "in.txt",    "--train-tokenizer",  "sentencepiece", "--vocabulary-size",
      "280",     "--tokenizer-output", folder / "vocabulary"};
  ASSERT_EQ(tokenize(train).code, 0);
  EXPECT_FALSE(std::filesystem::exists(folder / "out.bin"));
  auto both = train;
  both.insert(both.end(), {"--output", folder / "out", "--append-eod"});
  const auto refused = tokenize(both);
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.errors, HasSubstr("tokenizer.model is there already"));
  both.push_back("--overwrite");
  ASSERT_EQ(tokenize(both).code, 0);
  const auto tokenizer = load_tokenizer(folder / "vocabulary");
  const auto tokens = IndexedDataset(folder / "out").read(0);
  EXPECT_EQ(tokenizer->decode_bytes(tokens), text);
  EXPECT_EQ(count_text_bytes(*tokenizer, tokens), text.size());
}

TEST(TokenizeCommand, KeepsWhatIsThere) {
  const TemporaryFolder folder;
  put_file(folder / "in.txt", "new");
  put_file(folder / "out.bin", "old");
  const std::vector<std::string> arguments = {"--input",      folder / "in.txt", "--output",
                                              folder / "out", "--tokenizer",     "byte"};
  const auto refused = tokenize(arguments);
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.errors, HasSubstr("--overwrite"));
  EXPECT_EQ(read_file(folder / "out.bin"), "old");

  // A fault in the input must not cost the old data either.
  put_file(folder / "bad.jsonl", "{\"text\":\"fine\"}\n{\n");
  EXPECT_EQ(tokenize({"--input", folder / "bad.jsonl", "--output", folder / "out", "--tokenizer", "byte",
                      "--overwrite"})
                .code,
            2);
  EXPECT_EQ(read_file(folder / "out.bin"), "old");
  EXPECT_EQ(folder.files(), 3);
}

TEST(TokenizeCommand, ArgumentsThatDoNotFit) {
  const TemporaryFolder folder;
  put_file(folder / "in.txt", "text");
  put_file(folder / "in.jsonl", "{\"text\":\"text\"}");
  put_file(folder / "empty.txt", "");
  const std::string in = folder / "in.txt", out = folder / "out";
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "usage: trainer tokenize"},
      {{"--append-eod"}, "--input is missing"},
      {{"--input"}, "--input needs a value"},
      {{"--input", in}, "--tokenizer is missing"},
      {{"--input", in, "--tokenizer", "byte"}, "--output is missing"},
      {{"--input", in, "--tokeniser", "byte"}, "did you mean --tokenizer?"},
      {{"--input", in, "--tokenizer", "byte", "--output", out, "--workers", "0"}, "from 1 on"},
      {{"--input", in, "--tokenizer", "byte", "--output", out, "--format", "csv"}, "'csv'"},
      {{"--input", in, folder / "in.jsonl", "--tokenizer", "byte", "--output", out}, "not of one kind"},
      {{"--input", in, "--tokenizer", folder / "none", "--output", out}, "no such file"},
      {{"--input", folder / "none.txt", "--tokenizer", "byte", "--output", out}, "none.txt"},
      {{"--input", folder / "empty.txt", "--tokenizer", "byte", "--output", out}, "no text"},
      {{"--input", in, "--tokenizer", "byte", "--output", out, "--vocabulary-size", "300"}, "belong to"},
      {{"--input", in, "--train-tokenizer", "wordpiece"}, "wordpiece"},
      {{"--input", in, "--train-tokenizer", "sentencepiece", "--tokenizer", "byte"}, "not both"},
      {{"--input", in, "--train-tokenizer", "sentencepiece"}, "--vocabulary-size"},
  };
  for (const auto& [arguments, message] : cases) {
    const auto outcome = tokenize(arguments);
    EXPECT_EQ(outcome.code, 2) << message;
    EXPECT_THAT(outcome.errors, HasSubstr(message));
  }
  EXPECT_FALSE(std::filesystem::exists(out + ".bin"));
  const auto help = tokenize({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.output, HasSubstr("usage: trainer tokenize"));
}

}  // namespace
}  // namespace trainer::testing
