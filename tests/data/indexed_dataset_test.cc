#include "data/indexed_dataset.h"

#include <limits>

#include "base/file.h"
#include "dataset_files.h"

namespace trainer {
namespace {

using namespace trainer::testing;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(IndexedDataset, EveryTokenTypeIsRead) {
  const std::vector<int32_t> tokens{1, 2, 100, 0, 77};
  const auto check = [&](TokenType type, auto kind) {
    const TemporaryFolder folder;
    put_file(folder / "d.idx", index_bytes(type, {2, 0, 3}));
    std::string data;
    for (const int32_t token : tokens) append(data, static_cast<decltype(kind)>(token));
    put_file(folder / "d.bin", data);
    const IndexedDataset dataset(folder / "d.idx");  // the extension is taken off
    EXPECT_EQ(dataset.token_type(), type);
    EXPECT_EQ(dataset.tokens(), 5);
    EXPECT_THAT(dataset.read(0), ElementsAre(1, 2));
    EXPECT_THAT(dataset.read(1), ElementsAre());
    EXPECT_THAT(dataset.read(2), ElementsAre(100, 0, 77));
    std::vector<int32_t> part(2);
    dataset.read(2, 1, part);
    EXPECT_THAT(part, ElementsAre(0, 77));
    EXPECT_EQ(dataset.byte_offset(2), static_cast<int64_t>(2 * sizeof kind));
    dataset.check_vocabulary(101);
    EXPECT_THAT(input_error_of([&] { dataset.check_vocabulary(100); }),
                AllOf(HasSubstr("d.bin"), HasSubstr("token 0 of sequence 2 (token 2 of the file) is 100")));
  };
  check(TokenType::kU8, uint8_t{});
  check(TokenType::kI8, int8_t{});
  check(TokenType::kI16, int16_t{});
  check(TokenType::kI32, int32_t{});
  check(TokenType::kI64, int64_t{});
  check(TokenType::kF64, double{});
  check(TokenType::kF32, float{});
  check(TokenType::kU16, uint16_t{});
}

TEST(IndexedDataset, WhatIsNoTokenIsRefusedNotWrapped) {
  const auto message = [](TokenType type, auto value) {
    const TemporaryFolder folder;
    put_file(folder / "d.idx", index_bytes(type, {2}));
    std::string data;
    append(data, decltype(value){3});
    append(data, value);
    put_file(folder / "d.bin", data);
    const IndexedDataset dataset(folder / "d");
    return input_error_of([&] { dataset.read(0); });
  };
  EXPECT_THAT(message(TokenType::kI32, int32_t{-1}), HasSubstr("token 1 of sequence 0"));
  EXPECT_THAT(message(TokenType::kI64, (int64_t{1} << 32) + 5), HasSubstr("4294967301"));
  EXPECT_THAT(message(TokenType::kF32, 1.5f), HasSubstr("is 1.5"));
  EXPECT_THAT(message(TokenType::kF64, std::numeric_limits<double>::quiet_NaN()), HasSubstr("nan"));
}

TEST(IndexedDataset, ModesAfterTheIndexAreTolerated) {
  const TemporaryFolder folder;
  put_file(folder / "d.idx", index_bytes(TokenType::kU16, {1, 1}) + std::string("\0\1", 2));
  put_file(folder / "d.bin", std::string("\5\0\6\0", 4));
  const IndexedDataset dataset(folder / "d");
  ASSERT_TRUE(dataset.has_modes());
  EXPECT_EQ(dataset.mode(0), 0);
  EXPECT_EQ(dataset.mode(1), 1);
  EXPECT_THAT(dataset.read(1), ElementsAre(6));
}

TEST(IndexedDataset, EveryDamageIsNamed) {
  const std::string good = index_bytes(TokenType::kI32, {2, 3});
  const std::string data(20, '\1');
  const auto message = [&](const std::string& index, const std::string& tokens) {
    const TemporaryFolder folder;
    put_file(folder / "d.idx", index);
    put_file(folder / "d.bin", tokens);
    const std::string text = input_error_of([&] { IndexedDataset{folder / "d"}; });
    EXPECT_THAT(text, HasSubstr(folder / "d"));
    return text;
  };
  const auto changed = [&](size_t place, int64_t value, size_t bytes) {
    std::string index = good;
    std::memcpy(index.data() + place, &value, bytes);
    return index;
  };
  EXPECT_THAT(message("", data), HasSubstr("not a dataset index"));
  EXPECT_THAT(message(changed(2, 'X', 1), data), HasSubstr("not a dataset index"));
  EXPECT_THAT(message(good.substr(0, 20), data), HasSubstr("truncated"));
  EXPECT_THAT(message(good.substr(0, good.size() - 1), data), HasSubstr("truncated"));
  EXPECT_THAT(message(good + "x", data), HasSubstr("1 bytes after the document index"));
  EXPECT_THAT(message(changed(9, 2, 8), data), HasSubstr("version 2"));
  EXPECT_THAT(message(changed(17, 0, 1), data), HasSubstr("token type code 0"));
  EXPECT_THAT(message(changed(17, 9, 1), data), HasSubstr("token type code 9"));
  EXPECT_THAT(message(changed(18, -1, 8), data), HasSubstr("too short for"));
  EXPECT_THAT(message(changed(18, int64_t{1} << 62, 8), data),
              HasSubstr("too short for"));  // 12 * it wraps to 0
  EXPECT_THAT(message(changed(26, int64_t{1} << 61, 8), data), HasSubstr("too short for"));
  EXPECT_THAT(message(changed(34, -2, 4), data), HasSubstr("sequence 0 has length -2"));
  EXPECT_THAT(message(changed(50, 4, 8), data), HasSubstr("sequence 1 begins at byte 4"));
  EXPECT_THAT(message(changed(58, 1, 8), data), HasSubstr("document index entry 0 is 1"));
  EXPECT_THAT(message(changed(66, 3, 8), data), HasSubstr("document index entry 1 is 3"));
  EXPECT_THAT(message(changed(74, 1, 8), data), HasSubstr("ends at 1, but there are 2"));
  EXPECT_THAT(message(good, data.substr(1)), HasSubstr("too short for sequence 1"));
  EXPECT_THAT(message(good, data + "x"), HasSubstr("d.bin: 21 bytes"));
  EXPECT_THAT(input_error_of([] { IndexedDataset{"/nowhere/at/all"}; }), HasSubstr("/nowhere/at/all.idx"));
}

// A dataset with every fault a random byte can make either is refused or reads as many tokens as it says.
TEST(IndexedDataset, NoChangedByteIsReadPastTheEnd) {
  const std::string good = index_bytes(TokenType::kU16, {2, 0, 3}, {0, 1, 1, 3});
  const TemporaryFolder folder;
  put_file(folder / "d.bin", std::string(10, '\1'));
  int accepted = 0;
  for (size_t place = 0; place < good.size(); ++place)
    for (const int flip : {0x01, 0x40, 0x80, 0xff}) {
      std::string index = good;
      index[place] = static_cast<char>(index[place] ^ flip);
      put_file(folder / "d.idx", index);
      try {
        const IndexedDataset dataset(folder / "d");
        dataset.check_vocabulary(kAnyVocabulary);
        ++accepted;
      } catch (const InputError&) {
      }
    }
  EXPECT_LT(accepted, 8);  // type i16 instead of u16, and other places of the inner document bounds
}

TEST(IndexedWriter, RoundTripInBlocksAndWithEod) {
  const TemporaryFolder folder;
  IndexedDatasetWriter writer(folder / "d", 70000, 7);
  std::vector<std::vector<int32_t>> documents;
  for (int32_t i = 0; i < 3000; ++i) {
    std::vector<int32_t> document;
    for (int32_t k = 0; k < i % 500; ++k) document.push_back((i * 131 + k * 17) % 70000);
    EXPECT_EQ(writer.add_document(document), !document.empty());
    if (document.empty()) continue;
    document.push_back(7);
    documents.push_back(document);
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "d.idx"));
  writer.finish();
  const IndexedDataset dataset(folder / "d");
  ASSERT_EQ(dataset.sequences(), static_cast<int64_t>(documents.size()));
  EXPECT_EQ(dataset.documents(), dataset.sequences());
  EXPECT_EQ(dataset.tokens(), writer.tokens());
  for (size_t i = 0; i < documents.size(); ++i)
    ASSERT_EQ(dataset.read(static_cast<int64_t>(i)), documents[i]);
  EXPECT_EQ(folder.files(), 2);
}

TEST(IndexedWriter, DocumentsPieceByPiece) {
  const TemporaryFolder folder;
  IndexedDatasetWriter writer(folder / "d", 100, 9);
  EXPECT_FALSE(writer.end_document());
  writer.add_tokens(std::vector<int32_t>{1, 2});
  writer.add_tokens({});
  writer.add_tokens(std::vector<int32_t>{3});
  EXPECT_THAT(input_error_of([&] {
                writer.add_tokens(std::vector<int32_t>{4, 100});
              }),
              HasSubstr("token 4 of document 0 is 100"));
  EXPECT_THROW(writer.finish(), std::logic_error);  // inside a document
  EXPECT_TRUE(writer.end_document());
  EXPECT_TRUE(writer.add_document(std::vector<int32_t>{5}));
  writer.finish();
  const IndexedDataset dataset(folder / "d");
  ASSERT_EQ(dataset.documents(), 2);
  EXPECT_THAT(dataset.read(0), ElementsAre(1, 2, 3, 9));
  EXPECT_THAT(dataset.read(1), ElementsAre(5, 9));
}

TEST(IndexedWriter, WithoutFinishNothingStaysAndTheOldDatasetDoes) {
  const TemporaryFolder folder;
  counting_dataset(folder, "d", {3});
  {
    IndexedDatasetWriter writer(folder / "d", 100, std::nullopt);
    writer.add_document(std::vector<int32_t>(10, 1));
  }
  EXPECT_EQ(folder.files(), 2);
  EXPECT_THAT(IndexedDataset(folder / "d").read(0), ElementsAre(0, 1, 2));
}

TEST(IndexedWriter, ReplacesAnOlderDataset) {
  const TemporaryFolder folder;
  counting_dataset(folder, "d", {3});
  IndexedDatasetWriter writer(folder / "d", 100, std::nullopt);
  writer.add_document(std::vector<int32_t>{9, 8});
  writer.finish();
  EXPECT_THAT(IndexedDataset(folder / "d").read(0), ElementsAre(9, 8));
  EXPECT_EQ(folder.files(), 2);
}

TEST(IndexedWriter, EmptyDataset) {
  const TemporaryFolder folder;
  IndexedDatasetWriter(folder / "d", 100, 0).finish();
  const IndexedDataset dataset(folder / "d");
  EXPECT_EQ(dataset.sequences(), 0);
  EXPECT_EQ(dataset.documents(), 0);
  EXPECT_EQ(dataset.tokens(), 0);
}

TEST(IndexedWriter, BadIdsAndPlacesAreRefused) {
  const TemporaryFolder folder;
  EXPECT_THAT(input_error_of([&] { IndexedDatasetWriter(folder / "d", 10, 10); }),
              HasSubstr("end-of-document id 10"));
  EXPECT_THAT(input_error_of([&] { IndexedDatasetWriter(folder / "d", 0, std::nullopt); }),
              HasSubstr("vocabulary"));
  EXPECT_THROW(IndexedDatasetWriter(folder / "none/d", 10, 1), RunError);
  IndexedDatasetWriter writer(folder / "d", 10, 1);
  writer.add_document(std::vector<int32_t>{1, 2});
  EXPECT_THAT(input_error_of([&] {
                writer.add_document(std::vector<int32_t>{3, 10});
              }),
              HasSubstr("token 1 of document 1 is 10"));
  EXPECT_THAT(input_error_of([&] { writer.add_document(std::vector<int32_t>{-1}); }), HasSubstr("is -1"));
  writer.finish();  // the refused documents left no trace
  EXPECT_THAT(IndexedDataset(folder / "d").read(0), ElementsAre(1, 2, 1));
  EXPECT_EQ(IndexedDataset(folder / "d").sequences(), 1);
}

TEST(IndexedWriter, MergeKeepsDocumentsAndMovesOffsets) {
  const TemporaryFolder folder;
  put_file(folder / "a.idx", index_bytes(TokenType::kU16, {2, 0, 1}, {0, 0, 2, 3}));
  put_file(folder / "a.bin", std::string("\1\0\2\0\3\0", 6));
  put_file(folder / "b.idx", index_bytes(TokenType::kU16, {1, 2}, {0, 2}));
  put_file(folder / "b.bin", std::string("\4\0\5\0\6\0", 6));
  merge_datasets(std::vector<std::string>{folder / "a", folder / "b", folder / "a"}, folder / "all");
  const std::string expected =
      index_bytes(TokenType::kU16, {2, 0, 1, 1, 2, 2, 0, 1}, {0, 0, 2, 3, 5, 5, 7, 8});
  EXPECT_EQ(to_hex(read_file(folder / "all.idx")), to_hex(expected));
  EXPECT_EQ(to_hex(read_file(folder / "all.bin")), "010002000300040005000600010002000300");

  put_file(folder / "c.idx", index_bytes(TokenType::kI32, {1}));
  put_file(folder / "c.bin", std::string(4, '\0'));
  EXPECT_THAT(input_error_of([&] {
                merge_datasets(std::vector<std::string>{folder / "a", folder / "c"}, folder / "mixed");
              }),
              HasSubstr("its tokens are i32, there they are u16"));
  EXPECT_FALSE(std::filesystem::exists(folder / "mixed.bin"));
}

TEST(IndexedDataset, NameOfTheTokensOfAJsonKey) {
  EXPECT_EQ(document_prefix("out/x", "text"), "out/x_text_document");
}

TEST(Cases, ByteOffsetsPast32Bits) {
  const TemporaryFolder folder;
  put_file(
      folder / "t.idx",
      from_hex(
          "4d4d4944494458000001000000000000000403000000000000000400000000000000000000400000004005000000000000"
          "00"
          "00000000000000000100000000000000020000000000000000000000010000000000000002000000000000000300000000"
          "000000"));
  put_file(folder / "t.bin", "");
  std::filesystem::resize_file(folder / "t.bin", 8589934612);  // sparse
  std::fstream file(folder / "t.bin", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(8589934592);
  for (int32_t token = 11; token <= 15; ++token)
    file.write(reinterpret_cast<const char*>(&token), sizeof token);
  file.close();

  const IndexedDataset dataset(folder / "t");
  EXPECT_EQ(dataset.sequences(), 3);
  EXPECT_EQ(dataset.tokens(), 2147483653);
  EXPECT_EQ(dataset.byte_offset(1), 4294967296);
  EXPECT_EQ(dataset.byte_offset(2), 8589934592);
  EXPECT_EQ(dataset.length(1), 1073741824);
  EXPECT_THAT(dataset.read(2), ElementsAre(11, 12, 13, 14, 15));
}

TEST(Cases, TokenWidth16Or32Bits) {
  EXPECT_EQ(writer_token_type(65499), TokenType::kU16);
  for (const int64_t vocabulary : {65500, 65536, 65537})
    EXPECT_EQ(writer_token_type(vocabulary), TokenType::kI32);

  const TemporaryFolder folder;
  const std::vector<int32_t> tokens{1, 65535, 65536};
  IndexedDatasetWriter wide(folder / "wide", 65537, std::nullopt);
  wide.add_document(tokens);
  wide.finish();
  EXPECT_EQ(to_hex(read_file(folder / "wide.bin")), "01000000ffff000000000100");
  EXPECT_EQ(IndexedDataset(folder / "wide").read(0), tokens);

  IndexedDatasetWriter narrow(folder / "narrow", 65499, std::nullopt);
  EXPECT_THAT(input_error_of([&] { narrow.add_document(tokens); }), HasSubstr("u16"));
}

TEST(Cases, EmptyDocumentsAreSkippedAndEodCounts) {
  const TemporaryFolder folder;
  IndexedDatasetWriter writer(folder / "d", 256, 0);
  EXPECT_FALSE(writer.add_document({}));
  EXPECT_TRUE(writer.add_document(std::vector<int32_t>{'a', 'b'}));
  EXPECT_FALSE(writer.add_document({}));
  EXPECT_TRUE(writer.add_document(std::vector<int32_t>{'c'}));
  writer.finish();
  EXPECT_EQ(to_hex(read_file(folder / "d.bin")), "61006200000063000000");
  EXPECT_EQ(to_hex(read_file(folder / "d.idx")),
            "4d4d49444944580000010000000000000008020000000000000003000000000000000300000002000000000000000000"
            "0000060000"
            "0000000000000000000000000001000000000000000200000000000000");
}

TEST(Cases, DocumentsThatAreNotSequences) {
  const TemporaryFolder folder;
  put_file(
      folder / "d.idx",
      from_hex(
          "4d4d4944494458000001000000000000000802000000000000000500000000000000030000000200000000000000000000"
          "000600"
          "00000000000000000000000000000000000000000000010000000000000001000000000000000200000000000000"));
  put_file(folder / "d.bin", from_hex("61006200000063000000"));
  const IndexedDataset dataset(folder / "d");
  EXPECT_EQ(dataset.sequences(), 2);
  EXPECT_EQ(dataset.documents(), 4);
  EXPECT_EQ(dataset.tokens(), 5);
  std::vector<int64_t> documents;
  for (int64_t i = 0; i <= dataset.documents(); ++i) documents.push_back(dataset.document_begin(i));
  EXPECT_THAT(documents, ElementsAre(0, 0, 1, 1, 2));
  EXPECT_THAT(dataset.read(1), ElementsAre('c', 0));
}

TEST(Cases, SequencesOfNoTokens) {
  const TemporaryFolder folder;
  const auto dataset = counting_dataset(folder, "d", {0, 3, 0, 2});
  EXPECT_EQ(dataset->tokens(), 5);
  EXPECT_THAT(dataset->read(0), ElementsAre());
  EXPECT_THAT(dataset->read(1), ElementsAre(0, 1, 2));
  EXPECT_THAT(dataset->read(2), ElementsAre());
  EXPECT_THAT(dataset->read(3), ElementsAre(3, 4));
}

}  // namespace
}  // namespace trainer
