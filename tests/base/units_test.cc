#include "base/units.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace trainer {
namespace {

TEST(Units, ReadsBytes) {
  EXPECT_EQ(parse_bytes("4096", "t"), 4096);
  EXPECT_EQ(parse_bytes("20GiB", "t"), int64_t{20} << 30);
  EXPECT_EQ(parse_bytes("1.5 GB", "t"), 1'500'000'000);
  EXPECT_EQ(parse_bytes("512kib", "t"), 512 << 10);
  EXPECT_EQ(parse_bytes("0", "t"), 0);
  EXPECT_EQ(parse_bytes("9007199254740993", "t"), 9007199254740993);  // 2^53 + 1
}

TEST(Units, RefusesWhatIsNotBytes) {
  for (const char* text : {"", "GiB", "-1", "1e400", "inf", "nan", "12 parsecs", "1 GiB extra",
                           "9223372036854775808", "9000000TiB"})
    EXPECT_THROW(parse_bytes(text, "t"), InputError) << text;
}

TEST(Units, ExactBytesReadBack) {
  EXPECT_EQ(exact_bytes(int64_t{20} << 30), "20GiB");
  EXPECT_EQ(exact_bytes(20'000'000'000), "20GB");
  EXPECT_EQ(exact_bytes(1001), "1001B");
  EXPECT_EQ(exact_bytes(0), "0B");
  for (int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{1536}, int64_t{5} << 40, int64_t{1} << 62, INT64_MAX})
    EXPECT_EQ(parse_bytes(exact_bytes(bytes), "t"), bytes);
}

TEST(Units, WritesForPeople) {
  EXPECT_EQ(format_bytes(312), "312 B");
  EXPECT_EQ(format_bytes(7.42 * (1 << 30)), "7.42 GiB");
  EXPECT_EQ(format_bytes(1023.0 * (1 << 20)), "1.00 GiB");
  EXPECT_EQ(format_count(950), "950");
  EXPECT_EQ(format_count(12440), "12.4k");
  EXPECT_EQ(format_count(999'600), "1.00M");
  EXPECT_EQ(format_seconds(0.0451), "45 ms");
  EXPECT_EQ(format_seconds(0.99999), "1.0 s");
  EXPECT_EQ(format_seconds(12.34), "12.3 s");
  EXPECT_EQ(format_seconds(59.97), "1m 00s");
  EXPECT_EQ(format_seconds(3599.7), "1h 00m");
  EXPECT_EQ(format_seconds(3725), "1h 02m");
  EXPECT_EQ(format_seconds(183'600), "2d 03h");
}

}  // namespace
}  // namespace trainer
