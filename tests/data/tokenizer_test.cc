#include "data/tokenizer.h"

#include "data/byte_tokenizer.h"
#include "data/utf8.h"
#include "dataset_files.h"

namespace trainer::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<int32_t>;

TEST(ByteTokenizer, EveryByteIsItsOwnToken) {
  const auto tokenizer = load_tokenizer("byte");
  EXPECT_EQ(tokenizer->vocabulary_size(), 257);
  EXPECT_EQ(tokenizer->eod(), 256);
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  const Ids tokens = tokenizer->encode(all);
  ASSERT_EQ(tokens.size(), 256u);
  for (int byte = 0; byte < 256; ++byte) EXPECT_EQ(tokens[static_cast<size_t>(byte)], byte);
  EXPECT_EQ(tokenizer->decode_bytes(tokens), all);
  EXPECT_THAT(tokenizer->encode("a<|endoftext|>b", {.allow_special = true}), ElementsAre('a', 256, 'b'));
  EXPECT_EQ(tokenizer->encode("<|endoftext|>").size(), 13u);
  EXPECT_EQ(count_text_bytes(*tokenizer, Ids{'a', 256, 'b', 'c', 256}), 3u);
  EXPECT_THROW(tokenizer->bytes(257), InputError);
}

TEST(ByteTokenizer, EndOfDocumentAmongTheBytes) {
  const auto tokenizer = load_tokenizer("byte", {.eod = 0});
  EXPECT_EQ(tokenizer->vocabulary_size(), 256);
  EXPECT_EQ(tokenizer->eod(), 0);
  EXPECT_EQ(tokenizer->decode(Ids{'a', 0}), "a");
  EXPECT_THROW(tokenizer->encode(std::string("a\0b", 3)), InputError);
  EXPECT_THROW(load_tokenizer("byte", {.eod = 257}), InputError);
}

TEST(LoadTokenizer, SaysWhatIsMissing) {
  const TemporaryFolder folder;
  const auto error_of = [](const std::string& path) { return input_error_of([&] { load_tokenizer(path); }); };
  EXPECT_THAT(error_of(folder / "none"), HasSubstr("no such file"));
  EXPECT_THAT(error_of(folder / ""), HasSubstr("neither tokenizer.json nor tokenizer.model"));
  put_file(folder / "tokenizer.model", "not a model");
  EXPECT_THAT(error_of(folder / ""), HasSubstr("tokenizer.model"));
  put_file(folder / "tokenizer.json", "{}");
  EXPECT_THAT(error_of(folder / ""), HasSubstr("tokenizer.json"));
}

TEST(LoadTokenizer, FolderWithBothFiles) {
  const TemporaryFolder folder;
  std::filesystem::copy_file(TEST_DATA "/tokenizer/byte_fallback.model", folder / "tokenizer.model");
  std::filesystem::copy_file(TEST_DATA "/tokenizer/gpt2.json", folder / "tokenizer.json");
  EXPECT_EQ(load_tokenizer(folder / "")->vocabulary_size(), 331);
  put_file(folder / "tokenizer.json",
           R"({"model":{"type":"BPE","byte_fallback":true,"vocab":{},"merges":[]}})");
  EXPECT_EQ(load_tokenizer(folder / "")->vocabulary_size(), 267);
}

TEST(Utf8, IllFormedSequences) {
  // Lead and continuation bytes at the edges of Unicode's table of well-formed sequences.
  for (const std::string good :
       {"", "a", "\u0080", "\u07FF", "\u0800", "\uD7FF", "\uE000", "\uFFFF", "\U00010000", "\U0010FFFF"})
    EXPECT_EQ(first_invalid_utf8("x" + good), std::string::npos);
  for (const std::string bad :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xE4\xB8", "\xF0\x9F\xA6"})
    EXPECT_EQ(first_invalid_utf8("x" + bad), 1u);
  // One U+FFFD for each maximal subpart, as in the Unicode standard's example for best practice.
  EXPECT_EQ(replace_invalid_utf8("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"),
            "a\uFFFD\uFFFD\uFFFDb\uFFFDc\uFFFD\uFFFDd");
}

TEST(DocumentCut, BeforeTheLastWhiteSpaceAfterAWord) {
  EXPECT_EQ(document_cut("one two three", 9), 7u);
  EXPECT_EQ(document_cut("one two three", 7), 7u);
  EXPECT_EQ(document_cut("one two. three", 10), 3u);  // a word's end comes before punctuation further on
  EXPECT_EQ(document_cut("one.  two", 7), 4u);        // before the whole run of spaces
  EXPECT_EQ(document_cut("abcdefgh", 5), 5u);
  EXPECT_EQ(document_cut("ab\u4E2D\u6587", 6), 5u);  // not inside a character
  EXPECT_EQ(document_cut("   abc", 2), 2u);          // never nothing at all
}

}  // namespace
}  // namespace trainer::testing
