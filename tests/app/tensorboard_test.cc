#include "app/tensorboard.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "app/metrics.h"
#include "base/error.h"
#include "base/file.h"

namespace trainer {
namespace {

// CRC-32C bit by bit, masked.
uint32_t slow_checksum(std::string_view data) {
  uint32_t crc = 0xFFFFFFFF;
  for (const char c : data)
    for (int bit = 0; bit < 8; ++bit) {
      const uint32_t in = static_cast<uint32_t>(static_cast<unsigned char>(c) >> bit & 1);
      crc = (crc & 1) != in ? crc >> 1 ^ 0x82F63B78 : crc >> 1;
    }
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xA282EAD8;
}

// Fields of a protocol-buffer message, by number. Lengths and fixed values as raw bytes, varints in decimal.
std::map<int, std::string> fields(std::string_view message) {
  std::map<int, std::string> found;
  size_t at = 0;
  const auto varint = [&] {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(message.at(at++));
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (!(byte & 0x80)) return value;
    }
  };
  while (at < message.size()) {
    const uint64_t key = varint();
    const int number = static_cast<int>(key >> 3);
    const uint64_t kind = key & 7;
    if (kind == 0) {
      found[number] = std::to_string(varint());
      continue;
    }
    const size_t size = kind == 1 ? 8 : kind == 5 ? 4 : varint();
    found[number] = message.substr(at, size);
    at += size;
  }
  return found;
}

std::vector<std::string> records(const std::filesystem::path& directory) {
  std::vector<std::string> list;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string file = read_file(entry.path());
    for (size_t at = 0; at < file.size();) {
      uint64_t size = 0;
      uint32_t length_sum = 0, data_sum = 0;
      std::memcpy(&size, file.data() + at, 8);
      std::memcpy(&length_sum, file.data() + at + 8, 4);
      EXPECT_EQ(length_sum, slow_checksum(file.substr(at, 8)));
      list.push_back(file.substr(at + 12, size));
      std::memcpy(&data_sum, file.data() + at + 12 + size, 4);
      EXPECT_EQ(data_sum, slow_checksum(list.back()));
      at += 16 + size;
    }
  }
  return list;
}

std::filesystem::path fresh_folder(const std::string& name) {
  const auto path = std::filesystem::path(::testing::TempDir()) / name;
  std::filesystem::remove_all(path);
  return path;
}

TEST(TensorBoard, ChecksumOfTheTestMatchesItsKnownValue) {
  // CRC-32C("123456789") = E3069283, before masking.
  constexpr uint32_t kCrc = 0xE3069283;
  EXPECT_EQ(slow_checksum("123456789"), (kCrc >> 15 | kCrc << 17) + 0xA282EAD8);
}

TEST(TensorBoard, RecordsHoldVersionRestartMarkAndScalars) {
  const auto folder = fresh_folder("events");
  {
    TensorBoardWriter writer(folder, 301);
    writer.scalar("train/loss", 301, 2.5);
    writer.flush();
  }
  const auto list = records(folder);
  ASSERT_EQ(list.size(), 3);
  EXPECT_EQ(fields(list[0])[3], "brain.Event:2");
  EXPECT_EQ(fields(list[1])[2], "301");
  EXPECT_EQ(fields(fields(list[1])[7])[1], "1");
  auto event = fields(list[2]);
  EXPECT_EQ(event[2], "301");
  auto value = fields(fields(event[5])[1]);
  EXPECT_EQ(value[1], "train/loss");
  float number = 0;
  ASSERT_EQ(value[2].size(), 4);
  std::memcpy(&number, value[2].data(), 4);
  EXPECT_EQ(number, 2.5f);
}

TEST(TensorBoard, StepsAreWrittenWhole) {
  const auto folder = fresh_folder("steps");
  StepMetrics m;
  m.step = 3;
  m.valid_loss = 1.5;
  TensorBoardWriter writer(folder, 1);
  write_step(writer, m);
  EXPECT_EQ(records(folder).size(), 2 + 17);
}

TEST(TensorBoard, FolderThatCannotBeMade) { EXPECT_THROW(TensorBoardWriter("/proc/no/such", 1), RunError); }

}  // namespace
}  // namespace trainer
