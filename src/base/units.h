// Quantities as people write them: bytes, seconds, counts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace trainer {

inline constexpr double kGiB = 0x1p30;

// "20GiB", "1.5 GB", "4096", "512KiB": powers of 1024 with an i, of 1000 without; letter case does not
// matter. Throws InputError headed by `where` for anything else, negative amounts and more than 63 bits
// included.
int64_t parse_bytes(std::string_view text, const std::string& where);

// The exact amount in the unit that makes it shortest: "20GiB", "1KB", "1001B". parse_bytes reads it back.
std::string exact_bytes(int64_t bytes);

// For people, three significant digits or so: "7.42 GiB", "312 B".
std::string format_bytes(double bytes);
// "45 ms", "12.3 s", "3m 05s", "1h 02m", "2d 03h".
std::string format_seconds(double seconds);
// "950", "12.4k", "3.21M", "7.62G", and so on by powers of 1000.
std::string format_count(double count);

}  // namespace trainer
