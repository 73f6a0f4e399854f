#include "base/hash.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace trainer {
namespace {

std::string pattern(size_t size) {
  std::string bytes(size, '\0');
  for (uint64_t i = 0; i < size; ++i) bytes[i] = static_cast<char>((i * i + 7 * i + 3) >> 2);
  return bytes;
}

// Computed with xxhsum 0.8.1: every branch of the tail, the block loop, and a long input.
TEST(Hash, AgreesWithTheReferenceProgram) {
  const std::pair<size_t, uint64_t> known[] = {
      {0, 0xef46db3751d8e999},   {1, 0xe934a84adb052768},    {4, 0x160e30e9d4c9c97d},
      {8, 0x22299799207086a1},   {31, 0xc83f56fddb397a13},   {32, 0x2f1ac068b2506ca6},
      {33, 0xd7f17167a69c989e},  {63, 0xcbe3ad1e725457bd},   {64, 0x540f54c755cf88bc},
      {100, 0x03d39d9b22473e44}, {1000, 0x117186aa4f2ffb36}, {1000003, 0x575862c56e7a4e69}};
  for (const auto& [size, value] : known) EXPECT_EQ(hash_string(pattern(size)), value) << size << " bytes";
}

TEST(Hash, AgreesWithTheReferenceLibraryForOtherSeeds) {
  EXPECT_EQ(hash_string(pattern(1000), 1), 0x42b34231af7c8697u);
  EXPECT_EQ(hash_string(pattern(1000), 0x9E3779B185EBCA8D), 0x48b10ab1cb212652u);
  EXPECT_EQ(hash_string(pattern(1000), ~uint64_t{0}), 0xddabeb2df68fcb18u);
}

TEST(Hash, DoesNotDependOnAlignment) {
  const std::string bytes = pattern(200);
  for (size_t shift = 0; shift < 8; ++shift) {
    const std::string moved = std::string(shift, '!') + bytes;
    EXPECT_EQ(hash_bytes(moved.data() + shift, bytes.size()), hash_string(bytes));
  }
}

TEST(Hash, TheHasherTellsOrderAndBoundariesApart) {
  const auto texts = [](std::string_view a, std::string_view b) { return Hasher().add(a).add(b).value(); };
  EXPECT_EQ(texts("ab", "c"), texts("ab", "c"));
  EXPECT_NE(texts("ab", "c"), texts("a", "bc"));
  EXPECT_NE(texts("ab", "c"), texts("c", "ab"));
  EXPECT_NE(Hasher().add(1).add(2).value(), Hasher().add(2).add(1).value());
  EXPECT_NE(Hasher().add(int32_t{1}).value(), Hasher().add(int64_t{1}).value());
  EXPECT_NE(Hasher().add("").value(), Hasher().value());
}

}  // namespace
}  // namespace trainer
