#include "base/units.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/error.h"

namespace trainer {
namespace {

struct Unit {
  std::string_view name;
  double bytes;
};
constexpr std::array<Unit, 10> kUnits = {{{"", 1},
                                          {"b", 1},
                                          {"kb", 1e3},
                                          {"mb", 1e6},
                                          {"gb", 1e9},
                                          {"tb", 1e12},
                                          {"kib", 0x1p10},
                                          {"mib", 0x1p20},
                                          {"gib", kGiB},
                                          {"tib", 0x1p40}}};

// Three significant digits, never in exponent form.
std::string three_digits(double value) {
  const double size = std::abs(value);
  return fmt::format("{:.{}f}", value, size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
}

template <size_t N>
std::string scaled(double value, double base, const std::array<const char*, N>& suffixes, double switch_at) {
  size_t unit = 0;
  while (unit + 1 < N && std::abs(value) >= switch_at) {
    value /= base;
    ++unit;
  }
  return (unit == 0 ? fmt::format("{:.0f}", value) : three_digits(value)) + suffixes[unit];
}

}  // namespace

int64_t parse_bytes(std::string_view text, const std::string& where) {
  double number = 0;
  const auto [rest, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string unit;
  for (const char* p = rest; p != text.data() + text.size(); ++p)
    if (*p != ' ') unit += static_cast<char>(std::tolower(static_cast<unsigned char>(*p)));
  const auto* known =
      std::find_if(kUnits.begin(), kUnits.end(), [&](const Unit& u) { return u.name == unit; });
  const double bytes = known == kUnits.end() ? 0 : number * known->bytes;
  if (status != std::errc() || known == kUnits.end() || !std::isfinite(number) || number < 0)
    input_error("{}: '{}' is not an amount of bytes; write for example \"20GiB\", \"1.5GB\" or 4096", where,
                text);
  // Without a fraction the amount is exact: 2^53 + 1 must not be rounded.
  int64_t whole = 0, product = 0;
  const auto integer = std::from_chars(text.data(), text.data() + text.size(), whole);
  if (integer.ec == std::errc() && integer.ptr == rest &&
      !__builtin_mul_overflow(whole, static_cast<int64_t>(known->bytes), &product))
    return product;
  if (bytes >= 0x1p63) input_error("{}: '{}' is more bytes than 63 bits hold", where, text);
  return std::llround(bytes);
}

std::string exact_bytes(int64_t bytes) {
  std::string best = fmt::format("{}B", bytes);
  for (const auto& [name, size] : {std::pair{"KB", 1e3},
                                   {"MB", 1e6},
                                   {"GB", 1e9},
                                   {"TB", 1e12},
                                   {"KiB", 0x1p10},
                                   {"MiB", 0x1p20},
                                   {"GiB", kGiB},
                                   {"TiB", 0x1p40}}) {
    const auto unit = static_cast<int64_t>(size);
    const std::string text = fmt::format("{}{}", bytes / unit, name);
    if (bytes != 0 && bytes % unit == 0 && text.size() < best.size()) best = text;
  }
  return best;
}

std::string format_bytes(double bytes) {
  constexpr std::array<const char*, 6> suffixes = {" B", " KiB", " MiB", " GiB", " TiB", " PiB"};
  return scaled(bytes, 1024, suffixes, 1000);
}

std::string format_seconds(double seconds) {
  if (!std::isfinite(seconds)) return "unknown";
  if (seconds < 0.9995)
    return seconds < 0.001 ? fmt::format("{:.0f} us", seconds * 1e6)
                           : fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds < 59.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 3600) return fmt::format("{}m {:02}s", whole / 60, whole % 60);
  if (whole < 86400) return fmt::format("{}h {:02}m", whole / 3600, whole % 3600 / 60);
  return fmt::format("{}d {:02}h", whole / 86400, whole % 86400 / 3600);
}

std::string format_count(double count) {
  constexpr std::array<const char*, 6> suffixes = {"", "k", "M", "G", "T", "P"};
  return scaled(count, 1000, suffixes, 999.5);
}

}  // namespace trainer
