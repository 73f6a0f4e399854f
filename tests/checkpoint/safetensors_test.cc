#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/half.h"
#include "base/json.h"
#include "checkpoint/test_folder.h"

namespace trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string with_length(const std::string& header, const std::string& data = "") {
  const uint64_t size = header.size();
  return std::string(reinterpret_cast<const char*>(&size), 8) + header + data;
}

std::string floats(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

class SafetensorsHeader : public ::testing::Test {
 protected:
  // The refusal of a file with this content.
  std::string refusal(const std::string& content) {
    write_test_file(file_, content);
    return message_of([&] { SafetensorsFile{file_}; });
  }
  std::vector<float> read(const std::string& content, const std::string& tensor) {
    write_test_file(file_, content);
    const SafetensorsFile file(file_);
    const StoredTensor* stored = file.find(tensor);
    std::vector<float> values(static_cast<size_t>(stored->count()));
    file.read(*stored, 0, values);
    return values;
  }
  void expect_refused(const std::string& header, const std::string& data, const std::string& reason) {
    const std::string message = refusal(with_length(header, data));
    EXPECT_THAT(message, HasSubstr(reason)) << header;
    EXPECT_THAT(message, HasSubstr(file_.string())) << header;
  }

  TestFolder folder_;
  std::filesystem::path file_ = folder_ / "a.safetensors";
  const std::string two_ = floats({1, 2});
};

TEST_F(SafetensorsHeader, RefusesHeaderLengths) {
  EXPECT_THAT(refusal(""), HasSubstr("too few"));
  EXPECT_THAT(refusal("1234567"), HasSubstr("too few"));
  EXPECT_THAT(refusal("\xff\xff\xff\xff\xff\xff\xff\x7f{}"), HasSubstr("header of"));
  EXPECT_THAT(refusal(std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}")), HasSubstr("header of"));
  EXPECT_THAT(refusal(std::string("\x01\xe1\xf5\x05\0\0\0\0{}", 10)), HasSubstr("100000001"));
  EXPECT_THAT(refusal(std::string("\x40\0\0\0\0\0\0\0{}", 10)), HasSubstr("cut short"));
}

TEST_F(SafetensorsHeader, RefusesArithmeticThatDoesNotAddUp) {
  const auto entry = [](const std::string& shape, const std::string& offsets) {
    return R"({"a":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  expect_refused(entry("[2]", "[-4,4]"), two_, "tensor 'a': bad data_offsets [-4,4]");
  expect_refused(entry("[1]", "[8,4]"), two_, "tensor 'a': bad data_offsets [8,4]");
  expect_refused(entry("[3]", "[0,8]"), two_, "tensor 'a': shape [3] of F32 takes 12 bytes");
  expect_refused(entry("[4294967296,4294967296]", "[0,0]"), "",
                 "tensor 'a': shape [4294967296,4294967296] is too large");
  expect_refused(entry("[4]", "[0,16]"), two_, "tensor 'a' ends at byte 16 of the data, the file holds 8");
  expect_refused(entry("[-2]", "[0,8]"), two_, "no size");
  expect_refused(entry("[2.0]", "[0,8]"), two_, "no size");
  expect_refused(entry("[2]", "[0,8,8]"), two_, "not a pair");
  expect_refused(entry("[2]", "[0,18446744073709551615]"), two_, "bad data_offsets");
  expect_refused(entry("2", "[0,8]"), two_, "'shape' is not a list");
}

TEST_F(SafetensorsHeader, RefusesHolesAndOverlaps) {
  const auto pair = [](const std::string& a, const std::string& b) {
    return R"({"a":{"dtype":"F32","shape":[1],"data_offsets":)" + a +
           R"(},"b":{"dtype":"F32","shape":[1],"data_offsets":)" + b + "}}";
  };
  expect_refused(pair("[0,4]", "[0,4]"), floats({1}), "overlap");
  expect_refused(pair("[0,4]", "[8,12]"), floats({1, 2, 3}), "belong to none");
  expect_refused(pair("[0,4]", "[4,8]"), floats({1, 2, 3}), "belong to no tensor");
  EXPECT_EQ(refusal(with_length(pair("[4,8]", "[0,4]"), two_)), "");
}

TEST_F(SafetensorsHeader, RefusesWhatIsNoHeader) {
  expect_refused("[]", "", "no JSON object");
  expect_refused(" {}", "", "no JSON object");
  expect_refused("{", "", "not valid JSON");
  expect_refused(R"({"a":1})", "", "tensor 'a'");
  expect_refused(R"({"a":{"dtype":"F128","shape":[0],"data_offsets":[0,0]}})", "", "unknown dtype 'F128'");
  expect_refused(R"({"__metadata__":{"format":1}})", "", "__metadata__");
  const std::string twice = R"("a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})";
  expect_refused("{" + twice + "," + twice + "}", "", "'a' appears twice");
}

TEST_F(SafetensorsHeader, AcceptsWhatIsUnusualButRight) {
  EXPECT_THAT(read(with_length(R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", floats({3})), "s"),
              ElementsAre(3));
  const std::string mixed =
      with_length(R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]},)"
                  R"("empty":{"dtype":"F32","shape":[0,5],"data_offsets":[0,0]},)"
                  R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}    )",
                  two_);
  EXPECT_THAT(read(mixed, "a"), ElementsAre(1));
  EXPECT_THAT(read(mixed, "b"), ElementsAre(2));
  EXPECT_THAT(read(mixed, "empty"), ElementsAre());
  EXPECT_EQ(SafetensorsFile(file_).metadata().at("format"), "pt");
}

TEST_F(SafetensorsHeader, OnlyFloatsAreWeights) {
  write_test_file(file_, with_length(R"({"q":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", "ab"));
  const SafetensorsFile file(file_);
  std::vector<float> values(2);
  EXPECT_THAT(message_of([&] { file.read(*file.find("q"), 0, values); }), HasSubstr("tensor 'q' is U8"));
}

TEST(Safetensors, RoundTripsInEveryWeightType) {
  const TestFolder folder;
  const std::vector<float> values = {0, -0.0f, 1, -1.5f, 0.333984375f, 65504, 6.103515625e-5f, 5.9604645e-8f};
  {
    SafetensorsWriter writer(folder / "x.safetensors", {{"f", TensorType::kF32, {2, 4}},
                                                        {"none", TensorType::kF32, {0}},
                                                        {"b", TensorType::kBF16, {8}},
                                                        {"h", TensorType::kF16, {8}}});
    writer.write(std::span(values).first(3));
    writer.write(std::span(values).subspan(3));
    writer.write(values);
    writer.write(values);
    writer.commit();
    const std::string content = read_file(folder / "x.safetensors");
    EXPECT_EQ(content.size(), writer.bytes());
    EXPECT_EQ(hash_string(content), writer.checksum());
    EXPECT_EQ(content.size() % 8, 0u);
  }
  const SafetensorsFile file(folder / "x.safetensors");
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_THAT(file.find("f")->shape, ElementsAre(2, 4));
  std::vector<float> back(8);
  file.read(*file.find("f"), 0, back);
  for (size_t i = 0; i < 8; ++i)
    EXPECT_EQ(std::bit_cast<uint32_t>(back[i]), std::bit_cast<uint32_t>(values[i]));
  file.read(*file.find("h"), 0, back);
  for (size_t i = 0; i < 8; ++i)
    EXPECT_EQ(std::bit_cast<uint32_t>(back[i]), std::bit_cast<uint32_t>(values[i]));
  file.read(*file.find("b"), 3, std::span(back).first(1));
  EXPECT_EQ(back[0], -1.5f);
}

TEST(Safetensors, AnUnfinishedFileLeavesNothing) {
  const TestFolder folder;
  { SafetensorsWriter writer(folder / "x.safetensors", {{"f", TensorType::kF32, {2}}}); }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Half, EveryValueRoundTrips) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = half_to_float(static_cast<uint16_t>(bits));
    if (std::isnan(value))
      EXPECT_TRUE(std::isnan(half_to_float(float_to_half(value))));
    else
      ASSERT_EQ(float_to_half(value), bits);
  }
}

TEST(Half, RoundsToTheNearestEven) {
  // Between each pair of neighbours: just below the middle, the middle, just above it.
  for (uint16_t bits = 0; bits < 0x7BFF; ++bits) {
    const double low = half_to_float(bits), high = half_to_float(static_cast<uint16_t>(bits + 1));
    const auto middle = static_cast<float>((low + high) / 2);
    const auto even = static_cast<uint16_t>(bits + (bits & 1));
    ASSERT_EQ(float_to_half(std::nextafter(middle, 0.0f)), bits);
    ASSERT_EQ(float_to_half(middle), even);
    ASSERT_EQ(float_to_half(std::nextafter(middle, 1e9f)), bits + 1);
  }
  EXPECT_EQ(float_to_half(65519.99f), 0x7BFF);
  EXPECT_EQ(float_to_half(65520.0f), 0x7C00);
  EXPECT_EQ(float_to_half(-std::numeric_limits<float>::infinity()), 0xFC00);
}

}  // namespace
}  // namespace trainer
