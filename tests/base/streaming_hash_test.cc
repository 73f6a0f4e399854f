#include <gtest/gtest.h>

#include <random>
#include <string>

#include "base/hash.h"

namespace trainer {
namespace {

TEST(StreamingHash, PublishedValues) {
  StreamingHash hash;
  EXPECT_EQ(hash.value(), 0xEF46DB3751D8E999ull);
  hash.add("a", 1);
  EXPECT_EQ(hash.value(), 0xD24EC4F1A98C6E5Bull);
  hash.add("bc", 2);
  EXPECT_EQ(hash.value(), 0x44BC2CF5AD770999ull);
}

TEST(StreamingHash, DoesNotDependOnTheCuts) {
  std::mt19937 random(7);
  std::string text(1000, '\0');
  for (char& c : text) c = static_cast<char>(random());
  for (int round = 0; round < 500; ++round) {
    const size_t size = random() % (text.size() + 1);
    StreamingHash hash;
    for (size_t done = 0; done < size;) {
      const size_t n = std::min<size_t>(size - done, random() % 70);
      hash.add(text.data() + done, n);
      done += n;
    }
    ASSERT_EQ(hash.value(), hash_bytes(text.data(), size)) << size << " bytes";
  }
}

}  // namespace
}  // namespace trainer
