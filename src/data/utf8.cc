#include "data/utf8.h"

#include <utf8proc.h>

#include <cstdlib>
#include <memory>

#include "base/error.h"

namespace trainer {
namespace {

// Bytes of the well-formed sequence at `position`, or 0; then `bad` is the length of the maximal ill-formed
// subpart.
size_t sequence_length(std::string_view text, size_t position, size_t& bad) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[position + i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  size_t length = 0;
  uint8_t low = 0x80, high = 0xBF;  // what the second byte may be
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  }
  bad = 1;
  if (length == 0) return 0;
  for (size_t i = 1; i < length; ++i, ++bad) {
    if (position + i >= text.size() || byte(i) < low || byte(i) > high) return 0;
    low = 0x80;
    high = 0xBF;
  }
  return length;
}

}  // namespace

size_t first_invalid_utf8(std::string_view text) {
  size_t bad = 0;
  for (size_t i = 0; i < text.size();) {
    if (static_cast<uint8_t>(text[i]) < 0x80) {
      ++i;
      continue;
    }
    const size_t length = sequence_length(text, i, bad);
    if (length == 0) return i;
    i += length;
  }
  return std::string_view::npos;
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string result;
  result.reserve(bytes.size());
  for (size_t i = 0; i < bytes.size();) {
    size_t bad = 0;
    const size_t length = sequence_length(bytes, i, bad);
    if (length == 0) {
      result += "\xEF\xBF\xBD";
      i += bad;
    } else {
      result.append(bytes, i, length);
      i += length;
    }
  }
  return result;
}

char32_t decode_utf8(std::string_view text, size_t position, size_t& length) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[position + i]); };
  const uint8_t lead = byte(0);
  length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  require(position + length <= text.size(), "decode_utf8 past the end of the text");
  char32_t value = length == 1 ? lead : lead & (0xFFu >> (length + 1));
  for (size_t i = 1; i < length; ++i) value = value << 6 | (byte(i) & 0x3F);
  return value;
}

size_t length_before(std::string_view text, size_t position) {
  size_t length = 1;
  while (length < position && (static_cast<uint8_t>(text[position - length]) & 0xC0) == 0x80) ++length;
  return length;
}

void append_utf8(std::string& text, char32_t code_point) {
  uint8_t buffer[4];
  const auto length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), buffer);
  text.append(reinterpret_cast<const char*>(buffer), static_cast<size_t>(length));
}

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_word_character(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

std::string normalise_nfc(std::string_view text) {
  bool ascii = true;
  for (const char c : text) ascii &= static_cast<uint8_t>(c) < 0x80;
  if (ascii) return std::string(text);
  utf8proc_uint8_t* mapped = nullptr;
  const auto length = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                   static_cast<utf8proc_ssize_t>(text.size()), &mapped,
                                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  if (length < 0) input_error("cannot normalise the text to NFC: {}", utf8proc_errmsg(length));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, &std::free);
  return {reinterpret_cast<const char*>(mapped), static_cast<size_t>(length)};
}

}  // namespace trainer
