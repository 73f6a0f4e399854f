#include "data/text_pipeline.h"

#include <random>

#include "base/file.h"
#include "dataset_files.h"
#include "support/thinning.h"

namespace trainer::testing {
namespace {

using ::testing::HasSubstr;
using Ids = std::vector<int32_t>;

TextPipelineCounts write_dataset(const std::string& prefix, const Tokenizer& tokenizer,
                                 const TextPipelineOptions& options, bool append_eod = true) {
  IndexedDatasetWriter writer(prefix, tokenizer.vocabulary_size(),
                              append_eod ? tokenizer.eod() : std::nullopt);
  const auto counts = tokenize_files(tokenizer, options, writer);
  writer.finish();
  return counts;
}

std::string error_of(const TextPipelineOptions& options, const std::string& tokenizer = "byte") {
  const TemporaryFolder folder;
  return input_error_of([&] { write_dataset(folder / "out", *load_tokenizer(tokenizer), options); });
}

TEST(Cases, EmptyDocumentsAndTheirEnd) {
  const TemporaryFolder folder;
  put_file(folder / "in.jsonl", "{\"text\":\"\"}\n{\"text\":\"ab\"}\n{\"text\":\"\"}\n{\"text\":\"c\"}\n");
  const auto tokenizer = load_tokenizer("byte", {.eod = 0});
  const auto counts = write_dataset(folder / "out", *tokenizer, {.files = {folder / "in.jsonl"}});
  EXPECT_EQ(counts.documents, 2u);
  EXPECT_EQ(counts.empty_documents, 2u);
  EXPECT_EQ(counts.tokens, 5u);
  EXPECT_EQ(counts.text_bytes, 3u);
  EXPECT_EQ(to_hex(read_file(folder / "out.bin")), "61006200000063000000");
  EXPECT_EQ(to_hex(read_file(folder / "out.idx")),
            "4d4d49444944580000010000000000000008020000000000000003000000000000000300000002000000000000000000"
            "00000600000000"
            "000000000000000000000001000000000000000200000000000000");
}

TEST(TextReader, FormatsAndLineEnds) {
  const TemporaryFolder folder;
  put_file(folder / "a", "one\r\n\n two \nlast");
  put_file(folder / "b", "next");
  const auto read = [&](TextFormat format, size_t batch_bytes) {
    TextReader reader({folder / "a", folder / "b"}, format, batch_bytes);
    std::vector<std::pair<std::string, uint64_t>> documents;
    TextBatch batch;
    while (reader.next(batch))
      for_each_document(batch, format, "text", [&](const DocumentPart& part) {
        if (part.continues)
          documents.back().first += part.text;
        else
          documents.emplace_back(part.text, part.line);
      });
    EXPECT_EQ(reader.total_bytes(), 20u);
    return documents;
  };
  using Documents = std::vector<std::pair<std::string, uint64_t>>;
  for (const size_t batch_bytes : {1u, 2u, 5u, 7u, 16u, 1000u}) {
    EXPECT_EQ(read(TextFormat::kLines, batch_bytes),
              (Documents{{"one", 1}, {"", 2}, {" two ", 3}, {"last", 4}, {"next", 1}}));
    EXPECT_EQ(read(TextFormat::kText, batch_bytes), (Documents{{"one\r\n\n two \nlast", 1}, {"next", 1}}));
  }
  EXPECT_EQ(text_format("lines"), TextFormat::kLines);
  EXPECT_THROW(text_format("csv"), InputError);
}

// A document far longer than a part, and many short ones, in both formats and with every number of workers.
TEST(TextPipeline, OrderDoesNotDependOnWorkers) {
  const TemporaryFolder folder;
  std::mt19937 random(11);
  std::string lines, text;
  std::vector<std::string> documents;
  for (int i = 0; i < (kThinned ? 20000 : 40000); ++i) {
    std::string document;
    for (uint32_t words = random() % 16; words > 0; --words) document += fmt::format("w{} ", random() % 1000);
    lines += "{\"text\":\"" + document + "\",\"id\":" + std::to_string(i) + "}\n";
    text += document + "\n";
    if (!document.empty()) documents.push_back(document);
  }
  const std::string long_line = "{\"text\":\"" + std::string(100'000, 'x') + " tail\"}\n";
  put_file(folder / "in.jsonl", lines + long_line + lines);
  put_file(folder / "in.txt", text);
  const auto tokenizer = load_tokenizer(TEST_DATA "/tokenizer/llama3.json");

  for (const int workers : {1, 2, 5}) {
    const std::string name = folder / fmt::format("lines{}", workers);
    const auto counts = write_dataset(name, *tokenizer, {.files = {folder / "in.jsonl"}, .workers = workers});
    EXPECT_EQ(counts.documents, 2 * documents.size() + 1);
    EXPECT_EQ(counts.bytes_read, counts.total_bytes);
    EXPECT_EQ(read_file(name + ".bin"), read_file(folder / "lines1.bin"));
    EXPECT_EQ(read_file(name + ".idx"), read_file(folder / "lines1.idx"));
    write_dataset(folder / fmt::format("text{}", workers), *tokenizer,
                  {.files = {folder / "in.txt"}, .format = TextFormat::kText, .workers = workers});
    EXPECT_EQ(read_file(folder / fmt::format("text{}.bin", workers)), read_file(folder / "text1.bin"));
  }

  const IndexedDataset by_line(folder / "lines1");
  for (const size_t i : {size_t{0}, size_t{1}, documents.size() - 1}) {
    auto tokens = by_line.read(static_cast<int64_t>(i));
    EXPECT_EQ(tokens.back(), tokenizer->eod());
    tokens.pop_back();
    EXPECT_EQ(tokens, tokenizer->encode(documents[i]));
  }
  EXPECT_EQ(tokenizer->decode(by_line.read(static_cast<int64_t>(documents.size()))),
            std::string(100'000, 'x') + " tail");

  const IndexedDataset one(folder / "text1");
  ASSERT_EQ(one.documents(), 1);
  ASSERT_EQ(one.sequences(), 1);
  ASSERT_GT(text.size(), 10 * kDocumentPartBytes);
  Ids tokens = one.read(0);
  EXPECT_EQ(count_text_bytes(*tokenizer, tokens), text.size());
  tokens.pop_back();
  EXPECT_EQ(tokens, tokenizer->encode(text));
}

TEST(TextPipeline, LongDocumentsWithASpacePrefix) {
  const TemporaryFolder folder;
  std::string text = "start";
  while (text.size() < 3 * kDocumentPartBytes)
    text += text.size() % 3 == 0 ? " ab" : text.size() % 3 == 1 ? "\nabc" : "  cab.";
  put_file(folder / "in.txt", text);
  const auto tokenizer = load_tokenizer(TEST_DATA "/tokenizer/byte_fallback.model");
  ASSERT_TRUE(tokenizer->adds_space_prefix());
  write_dataset(folder / "out", *tokenizer,
                {.files = {folder / "in.txt"}, .format = TextFormat::kText, .workers = 3}, false);
  const Ids tokens = IndexedDataset(folder / "out").read(0);
  EXPECT_EQ(tokens, tokenizer->encode(text));
  EXPECT_EQ(tokenizer->decode_bytes(tokens), text);
  // Windows of the document add up to it.
  uint64_t bytes = 0;
  for (size_t i = 0; i < tokens.size(); i += 1000)
    bytes += count_text_bytes(*tokenizer,
                              std::span(tokens).subspan(i, std::min<size_t>(1000, tokens.size() - i)), i > 0);
  EXPECT_EQ(bytes, text.size());
}

TEST(TextPipeline, ErrorsNameFileAndLine) {
  const TemporaryFolder folder;
  const auto error_for = [&](const std::string& content, TextFormat format = TextFormat::kJsonLines,
                             int workers = 2) {
    put_file(folder / "bad", content);
    return error_of({.files = {folder / "bad"}, .format = format, .workers = workers},
                    TEST_DATA "/tokenizer/gpt2.json");
  };
  EXPECT_THAT(error_for("{\"text\":\"a\"}\n\n{\"text\":\n"), HasSubstr("bad:3"));
  EXPECT_THAT(error_for("{\"text\":\"a\"}\n{\"Text\":\"a\"}\n"),
              HasSubstr("bad:2: the object has no key 'text' (but 'Text')"));
  EXPECT_THAT(error_for("{\"text\":1}\n"), HasSubstr("bad:1: key 'text': expected a string"));
  EXPECT_THAT(error_for("[1]\n"), HasSubstr("bad:1: expected a JSON object"));
  EXPECT_THAT(error_for("a\nb\nc\xFF\nd\n", TextFormat::kText),
              HasSubstr("bad:3: the text is not UTF-8 (byte 0xff)"));
  EXPECT_THAT(error_for("a\nb\nc\xFF\nd\n", TextFormat::kLines), HasSubstr("bad:3: the text is not UTF-8"));
  EXPECT_THAT(error_of({.files = {folder / "none"}}), HasSubstr("none"));
  EXPECT_THAT(error_of({.files = {folder / ""}}), HasSubstr("folder"));

  // Of two faults far apart the first is told, whichever worker meets its own first.
  std::string many;
  constexpr int kLines = kThinned ? 30'000 : 300'000;
  for (int i = 1; i <= kLines; ++i)
    many += i == kLines / 2 || i == kLines / 2 + 1 || i == kLines - 10'000 ? "{\n" : "{\"text\":\"abc\"}\n";
  for (const int workers : {1, 4})
    EXPECT_THAT(error_for(many, TextFormat::kJsonLines, workers),
                HasSubstr(fmt::format("bad:{}:", kLines / 2)));
}

TEST(TextPipeline, ByteTokenizerTakesAnyBytes) {
  const TemporaryFolder folder;
  std::string bytes;
  std::mt19937 random(5);
  for (size_t i = 0; i < 3 * kDocumentPartBytes + 17; ++i) bytes += static_cast<char>(random());
  put_file(folder / "in", bytes);
  const auto tokenizer = load_tokenizer("byte");
  write_dataset(folder / "out", *tokenizer,
                {.files = {folder / "in"}, .format = TextFormat::kText, .workers = 2});
  EXPECT_EQ(tokenizer->decode_bytes(IndexedDataset(folder / "out").read(0)), bytes);
}

}  // namespace
}  // namespace trainer::testing
